// Lets an op write its output over an input that no later instruction needs.
#pragma once

#include "engine/program/program.h"

namespace shale {

// Merges pairs of transient buffers of the same size, where one op reads the first buffer as its last access and writes
// the second as its first access. The op must be allowed to write its output over that input (Validate accepts the two
// operands as the same view). All operands in the second buffer are then renamed to the first. Results do not change. A
// buffer is not merged if its contents pass from one iteration of a loop to the next, if it has a slot for each
// micro-batch, or if it is held for a later instruction (Buffer::held_until).
//
// The second buffer stays in the list, but no instruction uses it and it takes no bytes. Does nothing if CheckStructure
// (engine/program/structure.h) rejects the program.
void WorkInPlace(StepProgram& program);

}  // namespace shale
