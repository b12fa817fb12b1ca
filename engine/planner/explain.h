// Explains a plan in text, with the job's own numbers.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/planner/job_plan.h"
#include "engine/planner/summary.h"

namespace shale {

// Returns the plan as `train` prints it and plan.txt stores it: model, batch, strategy and accumulation with the
// reason, memory report, communication, arithmetic. Ends in a newline.
std::string PlanText(const Job& job, const JobPlan& plan);

// Returns the training step's program, instruction by instruction, as --dump_program prints it; with runtime.graphs
// also what each captured graph does. Ends in a newline.
std::string ProgramText(const Job& job, const JobPlan& plan);

// Returns a report that answers: where every byte goes, what K micro-batches add and why, what the optimizer step adds,
// what each preset of activation checkpointing saves and costs in FLOPs, what accumulating unsharded (no_sync) would
// cost, what other strategies would need. Compiles and plans the alternatives, which takes seconds for the largest
// models. `ops` are the ops of one of the job's ranks (Machine::create_ops). Ends in a newline.
absl::StatusOr<std::string> ExplainText(const Job& job, const JobPlan& plan, const Ops& ops);

}  // namespace shale
