#include "engine/memory/lifetimes.h"

#include "engine/memory/operands.h"
#include "engine/memory/range_set.h"

namespace shale {
namespace {

// One buffer's accesses so far.
struct Use {
  Lifetime span;
  int first_section = -1;
  int last_section = -1;
  RangeSet written;         // In this pass of last_section.
  bool read_first = false;  // Some pass read bytes that it had not written.

  void Touch(InstructionId id, int section) {
    if (first_section < 0) {
      first_section = section;
      span.first = id;
    }
    if (last_section != section) written.clear();
    last_section = section;
    span.last = id;
  }
};

void Write(RangeSet& written, const OperandBytes& operand) {
  if (operand.zeroes == nullptr) {
    written.Add(operand.bytes);
    return;
  }
  const int64_t begin = operand.bytes.begin, element_bytes = SizeOf(operand.zeroes->x_N.dtype);
  for (const ElementRange& range : *operand.zeroes->ranges) {
    written.Add({begin + range.begin * element_bytes, begin + range.end * element_bytes});
  }
}

// Loops over the micro-batches, those that happen to run once included.
bool IsLoop(const StepProgram& program, const Section& section) {
  if (section.repeat > 1) return true;
  for (InstructionId id = section.begin; id < section.end; ++id) {
    if (program.instructions[id].micro_batch >= 0) return true;
  }
  return false;
}

}  // namespace

std::vector<Lifetime> ComputeLifetimes(const StepProgram& program) {
  std::vector<Use> uses(program.buffers.size());
  std::vector<int> section_of(program.instructions.size(), -1);
  std::vector<bool> loops;
  for (size_t s = 0; s < program.sections.size(); ++s) {
    const Section& section = program.sections[s];
    loops.push_back(IsLoop(program, section));
    for (InstructionId id = section.begin; id < section.end; ++id) {
      section_of[id] = static_cast<int>(s);
      // The first pass touches no buffer that the others do not, and reads no more.
      const std::vector<OperandBytes> operands = OperandsOf(program.instructions[id], /*first_pass=*/false);
      // An instruction reads before it writes.
      for (const OperandBytes& operand : operands) {
        Use& use = uses[operand.buffer];
        use.Touch(id, static_cast<int>(s));
        if (operand.reads && operand.zeroes == nullptr && !use.written.Contains(operand.bytes)) use.read_first = true;
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
    if (use.first_section < 0) continue;
    if (buffer.held_until > use.span.last) {
      use.span.last = buffer.held_until;
      use.last_section = section_of[buffer.held_until];
    }
    if (use.first_section != use.last_section || use.read_first) {
      if (loops[use.first_section]) use.span.first = program.sections[use.first_section].begin;
      if (loops[use.last_section]) use.span.last = program.sections[use.last_section].end - 1;
    }
    lifetimes[b] = use.span;
  }
  return lifetimes;
}

}  // namespace shale
