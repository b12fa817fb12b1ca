// ValidOps returns one valid, symbolic op of every kind, with each operand in a buffer of its own. Tests of Validate
// make them invalid.
#pragma once

#include <vector>

#include "kernels/op.h"

namespace shale::testing {

std::vector<Op> ValidOps();

}  // namespace shale::testing
