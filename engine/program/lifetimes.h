// Lifetimes: which instructions need a buffer's bytes.
#pragma once

#include <vector>

#include "engine/program/program.h"

namespace shale {

// Instructions [first, last] of one program, in issue order, during which a buffer holds its bytes. Never used:
// first > last.
struct Lifetime {
  InstructionId first = 0;
  InstructionId last = -1;
  bool used() const { return first <= last; }
  bool operator==(const Lifetime&) const = default;
};

// By BufferId.
//
// Persistent buffers live for the whole program. Any other one lives from its first to its last access, or to
// `held_until`, and where it meets a loop that repeats, the next iteration needs it too: it lives for the whole of that
// loop, unless it is only used inside and every iteration writes all bytes that it reads before it reads them.
// Loops of micro-batches follow that rule even when K = 1, so that a plan does not depend on K.
//
// A strided operand counts as all bytes from its first to its last, so that the parts of a [T, 3, H, D] buffer, written
// one by one, are its whole. REQUIRES: CheckStructure (structure.h) accepts the program.
std::vector<Lifetime> ComputeLifetimes(const StepProgram& program);

}  // namespace shale
