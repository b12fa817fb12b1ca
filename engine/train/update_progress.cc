#include "engine/train/update_progress.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <tuple>
#include <variant>

#include "engine/program/operands.h"
#include "engine/program/program.h"

namespace shale {
namespace {

bool WritesState(const StepProgram& program, const Instruction& instruction) {
  bool writes = false;
  VisitInstruction(instruction, /*first_iteration=*/false, [&](absl::string_view, const Tensor& t, Access access) {
    const Buffer& buffer = program.buffers[t.where.symbol];
    const bool state = buffer.category == BufferCategory::kParameterShards ||
                       buffer.category == BufferCategory::kMasterWeights ||
                       buffer.category == BufferCategory::kOptimizerState;
    writes |= access != Access::kRead && buffer.persistent && state;
  });
  return writes;
}

// Loop, iteration and id of an issue: smaller ones come first.
using Place = std::tuple<size_t, int64_t, InstructionId>;

// Returns where a run issues an instruction for the first time.
Place FirstIssue(const StepProgram& program, InstructionId id) {
  size_t loop = 0;
  while (program.loops[loop].end <= id) ++loop;
  return {loop, program.instructions[id].last_iteration_only ? program.loops[loop].repeat - 1 : 0, id};
}

// Returns the instruction that is the first to write weights or optimizer state, if there is one.
std::optional<InstructionId> FirstWrite(const StepProgram& program) {
  std::optional<InstructionId> first;
  for (InstructionId id = 0; id < std::ssize(program.instructions); ++id) {
    if (!WritesState(program, program.instructions[id])) continue;
    if (!first || FirstIssue(program, id) < FirstIssue(program, *first)) first = id;
  }
  return first;
}

// Returns the last collective before instruction `id` that must have finished before that begins, if there is one.
std::optional<InstructionId> MeetingBefore(const StepProgram& program, InstructionId id) {
  std::array<InstructionId, kStreams> needed;  // The last instruction of each stream that must have finished.
  needed.fill(-1);
  const auto last_needed = [&](InstructionId of) -> InstructionId& {
    return needed[static_cast<int>(program.instructions[of].stream)];
  };
  last_needed(id) = id;
  for (InstructionId at = id; at >= 0; --at) {
    if (at > last_needed(at)) continue;
    if (at < id && std::holds_alternative<Collective>(program.instructions[at].action)) return at;
    for (const InstructionId wait : program.instructions[at].waits) {
      // What comes later in a loop is waited for in the iteration before.
      if (wait < at) last_needed(wait) = std::max(last_needed(wait), wait);
    }
  }
  return std::nullopt;
}

}  // namespace

bool UpdateMayHaveBegun(const std::vector<InstructionNote>& notes) {
  if (notes.empty()) return true;
  const auto earlier = [](const InstructionNote& a, const InstructionNote& b) { return a.run < b.run; };
  const InstructionNote& newest = *std::max_element(notes.begin(), notes.end(), earlier);
  const StepProgram& program = *newest.program;
  const std::optional<InstructionId> write = FirstWrite(program);
  if (!write) return false;
  const std::optional<InstructionId> meeting = MeetingBefore(program, *write);
  if (!meeting) return true;
  // The write waits for the collective of its own iteration, or of the last one of an earlier loop.
  const auto [write_loop, write_iteration, write_id] = FirstIssue(program, *write);
  auto [loop, iteration, id] = FirstIssue(program, *meeting);
  if (loop == write_loop && iteration > write_iteration) return true;
  iteration = loop < write_loop ? program.loops[loop].repeat - 1 : write_iteration;
  const Place met = {loop, iteration, id};
  for (const InstructionNote& note : notes) {
    if (note.run != newest.run || note.stream != program.instructions[id].stream) continue;
    const Place place = {std::get<0>(FirstIssue(program, note.id)), note.iteration, note.id};
    if (place > met || (place == met && note.finished_ns > 0)) return true;
  }
  return false;
}

}  // namespace shale
