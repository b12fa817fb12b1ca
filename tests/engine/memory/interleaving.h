// Runs a planned program as streams may really run it: in any interleaving that FIFO order and waits allow.
#pragma once

#include <cstdint>
#include <string>

#include "engine/memory/plan.h"
#include "engine/program/program.h"

namespace shale::testing {

// Every byte holds the number of the issue that wrote it. Each issue has a start and an end, and between them those of
// other streams may run; `seed` picks who goes next. Every read must find, from start to end, what it would find if
// each buffer had memory of its own and instructions ran one by one in issue order; else returns what was found. "":
// all did. By rank 1 of two, so that places by rank are not those that the check looks at.
std::string RunInterleaved(const StepProgram& program, const MemoryPlan& plan, uint64_t seed);

}  // namespace shale::testing
