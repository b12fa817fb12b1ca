// Outputs that take over the bytes of an input nobody needs any more.
#pragma once

#include "engine/program/program.h"

namespace shale {

// Where an op is the last to access one transient buffer and the first to access another of the same size, and may
// write the second where it reads the first (Validate accepts the two operands as one view), the two buffers become
// one: the second's operands are renamed to the first. Changes no result. A buffer that lives over iterations of its
// loop, has a slot for each micro-batch, or is held for a later instruction stays as it is.
//
// The buffer that was renamed stays in the list, and no instruction uses it: it takes no bytes.
void WorkInPlace(StepProgram& program);

}  // namespace shale
