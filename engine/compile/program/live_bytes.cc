#include "engine/compile/program/live_bytes.h"

#include "engine/compile/program/accesses.h"
#include "engine/compile/program/range_set.h"

namespace shale {
namespace {

// The accesses to one buffer so far.
struct Use {
  Lifetime span;
  int first_loop = -1;
  int last_loop = -1;
  RangeSet written;         // Bytes written in the current iteration of last_loop.
  bool read_first = false;  // Whether an iteration reads bytes before it writes them.

  void Touch(InstructionId id, int loop) {
    if (first_loop < 0) {
      first_loop = loop;
      span.first = id;
    }
    if (last_loop != loop) written.clear();
    last_loop = loop;
    span.last = id;
  }
};

void Write(RangeSet& written, const OperandBytes& operand) {
  if (operand.ranges == nullptr) {
    written.Add(operand.bytes);
    return;
  }
  for (const ElementRange& range : *operand.ranges) {
    written.Add({operand.bytes.begin + range.begin * operand.element_bytes,
                 operand.bytes.begin + range.end * operand.element_bytes});
  }
}

}  // namespace

std::vector<Lifetime> ComputeLifetimes(const StepProgram& program) {
  std::vector<Use> uses(program.buffers.size());
  std::vector<int> loop_of(program.instructions.size(), -1);
  std::vector<OperandBytes> operands;
  for (size_t s = 0; s < program.loops.size(); ++s) {
    const Loop& loop = program.loops[s];
    for (InstructionId id = loop.begin; id < loop.end; ++id) {
      loop_of[id] = static_cast<int>(s);
      // The first iteration accesses no other buffers than the later ones, and reads no more than they do.
      GetOperands(program.instructions[id], /*first_iteration=*/false, operands);
      for (const OperandBytes& operand : operands) uses[operand.buffer].Touch(id, static_cast<int>(s));
      if (loop.repeat == 1) continue;  // Nothing passes from one iteration to the next.
      // An instruction reads before it writes.
      for (const OperandBytes& operand : operands) {
        Use& use = uses[operand.buffer];
        if (operand.reads && operand.ranges == nullptr && !use.written.Contains(operand.bytes)) use.read_first = true;
      }
      for (const OperandBytes& operand : operands) {
        if (operand.writes) Write(uses[operand.buffer].written, operand);
      }
    }
  }

  std::vector<Lifetime> lifetimes(program.buffers.size());
  for (size_t b = 0; b < lifetimes.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    Use& use = uses[b];
    if (buffer.persistent) {
      lifetimes[b] = {0, static_cast<InstructionId>(program.instructions.size()) - 1};
      continue;
    }
    if (use.first_loop < 0) continue;
    if (buffer.held_until > use.span.last) {
      use.span.last = buffer.held_until;
      use.last_loop = loop_of[buffer.held_until];
    }
    if (use.first_loop != use.last_loop || use.read_first) {
      const Loop& first = program.loops[use.first_loop];
      const Loop& last = program.loops[use.last_loop];
      if (first.repeat > 1) use.span.first = first.begin;
      if (last.repeat > 1) use.span.last = last.end - 1;
    }
    lifetimes[b] = use.span;
  }
  return lifetimes;
}

LiveBytes PersistentBytes(const StepProgram& program) {
  LiveBytes live;
  for (const Buffer& buffer : program.buffers) {
    if (buffer.persistent && buffer.memory == MemoryKind::kDevice) live.Add(buffer);
  }
  return live;
}

std::vector<LiveChange> LiveChanges(const StepProgram& program, const std::vector<Lifetime>& lifetimes) {
  std::vector<LiveChange> changes(program.instructions.size());
  for (size_t b = 0; b < program.buffers.size(); ++b) {
    const Buffer& buffer = program.buffers[b];
    if (buffer.persistent || buffer.memory == MemoryKind::kHost || !lifetimes[b].used()) continue;
    changes[lifetimes[b].first].begins.push_back(static_cast<BufferId>(b));
    changes[lifetimes[b].last].ends.push_back(static_cast<BufferId>(b));
  }
  return changes;
}

}  // namespace shale
