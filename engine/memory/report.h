// The memory plan for people: where every byte goes.
#pragma once

#include <string>

#include "engine/memory/plan.h"

namespace shale {

// "31.2 GiB", "512 MiB", "1.5 KiB", "17 B": three significant digits.
std::string FormatBytes(int64_t bytes);

// The peak, the lower bound, bytes by category at the moment of the peak, that moment (instruction, unit, phase,
// micro-batch), and the largest live buffers with their names.
std::string MemoryReport(const StepProgram& program, const MemoryPlan& plan);

}  // namespace shale
