// Describes a plan in text: what was decided, with the job's own numbers, and the program.
#pragma once

#include <string>

#include "engine/planner/job_plan.h"

namespace shale {

// Returns the plan as `train` prints it and plan.txt stores it: model, batch, strategy and accumulation with the
// reason, communication, arithmetic, and the memory report. The text ends in a newline.
std::string PlanText(const Job& job, const JobPlan& plan);

// Returns the training step's program, instruction by instruction, as --dump_program prints it. With runtime.graphs,
// the text also says what each captured graph does. It ends in a newline.
std::string ProgramText(const Job& job, const JobPlan& plan);

}  // namespace shale
