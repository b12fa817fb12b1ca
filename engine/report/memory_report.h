// Text about a memory plan, for people: where every byte goes.
#pragma once

#include <string>

#include "engine/memory/plan.h"

namespace shale {

// Returns a report of the peak, its lower bound, the bytes by category at the peak, the instruction that reaches it
// (with unit, phase and micro-batch), and the largest live buffers with their names.
std::string MemoryReport(const StepProgram& program, const MemoryPlan& plan);

}  // namespace shale
