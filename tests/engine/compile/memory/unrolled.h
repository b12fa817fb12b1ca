// A program with all its loops unrolled: the specification that planning, waits and their check are tested against.
// Deliberately slow and simple.
#pragma once

#include <string>
#include <vector>

#include "engine/compile/memory/plan.h"
#include "engine/compile/program/program.h"
#include "engine/compile/program/range_set.h"

namespace shale::testing {

// One operand of one issue.
struct UnrolledAccess {
  BufferId buffer = -1;
  bool reads = false, writes = false;
  ByteRange touched;               // Bytes of the arena that it may touch on any rank and in any micro-batch.
  std::vector<ByteRange> exact;    // Bytes of the arena that it touches on the rank asked for.
  std::vector<ByteRange> in_slot;  // The same, as bytes of the buffer.
};

struct UnrolledIssue {
  InstructionId instruction = -1;
  int64_t iteration = 0;
  int stream = 0;
  std::vector<int> waits;  // Issues that must have finished, not counting the stream's own.
  std::vector<UnrolledAccess> accesses;
};

// Returns the address of a buffer. Here host memory begins where the arena ends.
int64_t AddressOf(const StepProgram& program, const MemoryPlan& plan, BufferId b);

// Returns the issues of all iterations of all loops, in issue order. A wait refers to the most recent issue of its
// instruction, if there was any.
std::vector<UnrolledIssue> Unroll(const StepProgram& program, const MemoryPlan& plan, int64_t rank);

// Returns what is wrong with a planned program that has waits, or "" if nothing is. Compares every pair of issues and
// every byte.
std::string FindViolation(const StepProgram& program, const MemoryPlan& plan);

}  // namespace shale::testing
