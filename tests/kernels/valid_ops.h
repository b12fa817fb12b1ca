// One valid, symbolic op of every kind, each operand in a buffer of its own: what tests of Validate spoil.
#pragma once

#include <vector>

#include "kernels/ops.h"

namespace shale::testing {

std::vector<Op> ValidOps();

}  // namespace shale::testing
