// Lifetimes: the instructions during which a buffer must keep its bytes.
#pragma once

#include <vector>

#include "engine/program/program.h"

namespace shale {

// A buffer holds its bytes during instructions [first, last] of one program, in issue order. For a buffer that is never
// used, first > last.
struct Lifetime {
  InstructionId first = 0;
  InstructionId last = -1;
  bool used() const { return first <= last; }
  bool operator==(const Lifetime&) const = default;
};

// Returns the lifetime of every buffer, by BufferId.
//
// Persistent buffers live for the whole program. Any other buffer lives from its first to its last access, or to
// `held_until` if that is later. A buffer that is used in a loop that repeats may be needed by the next iteration too.
// It therefore lives for the whole loop, unless it is used only inside that loop and every iteration writes all bytes
// that it reads before it reads them. So a buffer in which micro-batches accumulate lives during their entire loop if
// K > 1, but only from its first write on if K = 1.
//
// A strided operand counts as all bytes from its first to its last. When the parts of a [T, 3, H, D] buffer are written
// one by one, they therefore cover the whole buffer. REQUIRES: CheckStructure (structure.h) accepts the program.
std::vector<Lifetime> ComputeLifetimes(const StepProgram& program);

}  // namespace shale
