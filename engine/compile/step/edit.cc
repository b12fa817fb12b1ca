#include "engine/compile/step/edit.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>

#include "engine/compile/program/accesses.h"

namespace shale {

ProgramEdit::ProgramEdit(StepProgram& program)
    : program_(program),
      before_(program.instructions.size()),
      after_(program.instructions.size()),
      ahead_(program.loops.size()),
      after_loop_(program.loops.size()),
      taken_(program.instructions.size(), false),
      placed_(program.buffers.size(), false) {
  for (size_t loop = 0; loop < program.loops.size(); ++loop) loop_of_.resize(program.loops[loop].end, loop);
}

BufferId ProgramEdit::AppendBuffer(Buffer buffer) {
  program_.buffers.push_back(std::move(buffer));
  placed_.push_back(false);
  return static_cast<BufferId>(program_.buffers.size()) - 1;
}

Tensor ProgramEdit::AddTensor(std::string name, BufferCategory category, Tensor like, MemoryKind memory) {
  program_.buffers.push_back(
      {.name = std::move(name), .category = category, .slot_bytes = like.extent_bytes(), .memory = memory});
  placed_.push_back(true);
  like.where = {.symbol = static_cast<BufferId>(program_.buffers.size()) - 1};
  return like;
}

void ProgramEdit::InsertBefore(InstructionId at, Instruction instruction) {
  inserts_ = true;
  before_[at].push_back(std::move(instruction));
}

void ProgramEdit::InsertAfter(InstructionId at, Instruction instruction) {
  inserts_ = true;
  after_[at].push_back(std::move(instruction));
}

void ProgramEdit::InsertAhead(InstructionId at, InstructionId user, Instruction instruction) {
  loop_of_[at] == loop_of_[user] ? InsertBefore(at, std::move(instruction))
                                 : InsertBeforeLoop(at, std::move(instruction));
}

void ProgramEdit::InsertBeforeLoop(InstructionId at, Instruction instruction) {
  inserts_ = true;
  ahead_[loop_of_[at]].push_back(std::move(instruction));
}

void ProgramEdit::InsertAfterLoop(InstructionId at, Instruction instruction) {
  inserts_ = true;
  after_loop_[loop_of_[at]].push_back(std::move(instruction));
}

void ProgramEdit::Remove(InstructionId id) {
  inserts_ = true;
  Take(id);
}

Instruction ProgramEdit::Take(InstructionId id) {
  taken_[id] = true;
  VisitInstruction(program_.instructions[id], /*first_iteration=*/false,
                   [&](absl::string_view, const Tensor& t, Access access) {
                     if (access == Access::kWrite && !program_.buffers[t.where.symbol].persistent) {
                       placed_[t.where.symbol] = true;
                     }
                   });
  return std::move(program_.instructions[id]);
}

void ProgramEdit::Apply() {
  if (inserts_) OrderInstructions();
  NumberBuffers();
}

void ProgramEdit::OrderInstructions() {
  std::vector<Instruction> instructions;
  std::vector<InstructionId> moved_to;
  std::vector<Loop> loops;
  instructions.reserve(program_.instructions.size());
  moved_to.reserve(program_.instructions.size());
  const auto append = [&](std::vector<Instruction>& some) {
    for (Instruction& instruction : some) instructions.push_back(std::move(instruction));
  };
  const auto next = [&] { return static_cast<InstructionId>(instructions.size()); };
  for (size_t loop = 0; loop < program_.loops.size(); ++loop) {
    const Loop old = program_.loops[loop];
    InstructionId begin = next();
    append(ahead_[loop]);
    if (next() > begin) {
      if (loops.empty() || loops.back().repeat > 1) loops.push_back({begin, begin, 1});
      loops.back().end = begin = next();
    }
    for (InstructionId id = old.begin; id < old.end; ++id) {
      append(before_[id]);
      moved_to.push_back(next());
      if (!taken_[id]) instructions.push_back(std::move(program_.instructions[id]));
      append(after_[id]);
    }
    if (next() > begin) loops.push_back({begin, next(), old.repeat});
    begin = next();
    append(after_loop_[loop]);
    if (next() > begin) loops.push_back({begin, next(), 1});
  }
  program_.instructions = std::move(instructions);
  program_.loops = std::move(loops);
  for (Buffer& buffer : program_.buffers) {
    if (buffer.held_until >= 0) buffer.held_until = moved_to[buffer.held_until];
  }
}

void ProgramEdit::NumberBuffers() {
  if (std::find(placed_.begin(), placed_.end(), true) == placed_.end()) return;
  // Of each buffer to place: the buffer after which it stands, in the order in which they are used.
  std::vector<std::pair<BufferId, BufferId>> places;
  BufferId latest = -1;
  for (BufferId b = 0; b < std::ssize(placed_); ++b) {
    if (program_.buffers[b].persistent) latest = b;
  }
  std::vector<bool> seen(placed_.size(), false);
  std::vector<BufferId> first_used;
  std::vector<BufferId*> operands;  // Where the instructions name buffers.
  for (Instruction& instruction : program_.instructions) {
    first_used.clear();
    ChangeOperands(instruction, [&](Tensor& t) {
      operands.push_back(&t.where.symbol);
      const BufferId b = t.where.symbol;
      if (!placed_[b]) latest = std::max(latest, b);
      if (placed_[b] && !seen[b]) first_used.push_back(b);
      seen[b] = true;
    });
    for (const BufferId b : first_used) places.emplace_back(latest, b);
  }
  std::vector<BufferId> number(placed_.size(), -1);
  std::vector<Buffer> buffers;
  buffers.reserve(placed_.size());
  auto place = places.begin();
  for (BufferId b = 0; b < std::ssize(placed_); ++b) {
    const auto append = [&](BufferId old) {
      number[old] = static_cast<BufferId>(buffers.size());
      buffers.push_back(std::move(program_.buffers[old]));
    };
    if (!placed_[b]) append(b);
    for (; place != places.end() && place->first <= b; ++place) append(place->second);
  }
  program_.buffers = std::move(buffers);
  for (BufferId* b : operands) *b = number[*b];
}

std::vector<VisitRange> VisitsOf(const StepProgram& program) {
  std::vector<VisitRange> visits;
  for (InstructionId id = 0; id < std::ssize(program.instructions); ++id) {
    const Instruction& instruction = program.instructions[id];
    const bool ahead = instruction.stream == StreamId::kGather || std::holds_alternative<Transfer>(instruction.action);
    if (instruction.unit < 0 || ahead) continue;
    if (visits.empty() || visits.back().unit != instruction.unit) visits.push_back({instruction.unit, id, id});
    visits.back().last = id;
  }
  return visits;
}

std::vector<bool> WrittenIn(const StepProgram& program, const Loop& loop) {
  std::vector<bool> written(program.buffers.size(), false);
  for (InstructionId id = loop.begin; id < loop.end; ++id) {
    VisitInstruction(program.instructions[id], /*first_iteration=*/false,
                     [&](absl::string_view, const Tensor& t, Access access) {
                       if (access != Access::kRead) written[t.where.symbol] = true;
                     });
  }
  return written;
}

Instruction CopyInstruction(const Instruction& like, const Tensor& device, const Tensor& host, bool to_host) {
  return {.action = Transfer{.device = device, .host = host, .to_host = to_host},
          .stream = StreamId::kCopy,
          .phase = like.phase,
          .unit = like.unit,
          .micro_batch = like.micro_batch,
          .last_iteration_only = like.last_iteration_only};
}

}  // namespace shale
