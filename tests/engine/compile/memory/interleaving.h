// Runs a planned program in a random interleaving of its streams that FIFO order and waits allow.
#pragma once

#include <cstdint>
#include <string>

#include "engine/compile/memory/plan.h"
#include "engine/compile/program/program.h"

namespace shale::testing {

// Simulates a run in which every byte holds the number of the issue that wrote it. Each issue has a start and an end,
// and issues of other streams may run between them; `seed` decides the order. From start to end, every read must find
// what it would find if each buffer had memory of its own and instructions ran one by one in issue order. Returns the
// first difference, or "" if there is none. Simulates rank 1 of two, because the check looks at the places of rank 0.
std::string RunInterleaved(const StepProgram& program, const MemoryPlan& plan, uint64_t seed);

}  // namespace shale::testing
