// Checks ops that must fail when they run, because of what their operands hold.
#pragma once

#include <string>
#include <vector>

#include "kernels/op.h"
#include "tests/kernels/test_memory.h"

namespace shale::testing {

// Expects that a launch of `op`, on every backend that reports bad indices, ends with OutOfRange and a message with the
// op's name and each of `parts`, and that it changes no byte of `memory`.
void ExpectRunFails(const TestMemory& memory, const Op& op, const std::vector<std::string>& parts);

}  // namespace shale::testing
