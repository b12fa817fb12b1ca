// What a plan means, in this job's own numbers.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/planner/job_plan.h"
#include "engine/planner/summary.h"

namespace shale {

// The plan as `train` prints it and plan.txt keeps it: model, batch, strategy and schedule with the reason, memory
// report, communication, arithmetic. Ends in a newline.
std::string PlanText(const Job& job, const JobPlan& plan);

// Returns the training step's program, instruction by instruction, as --dump_program prints it; with runtime.graphs
// also what each captured graph does. Ends in a newline.
std::string ProgramText(const Job& job, const JobPlan& plan);

// Answers what people ask of their trainers: where every byte goes, what K micro-batches add and why, what the
// optimizer step adds, what each retention saves and costs in FLOPs, what accumulating unsharded (no_sync) would cost,
// what other strategies would need. The alternatives are really compiled and planned: seconds for the largest models.
// `ops`: those of one of the job's ranks (Machine::create_ops). Ends in a newline.
absl::StatusOr<std::string> ExplainText(const Job& job, const JobPlan& plan, const Ops& ops);

}  // namespace shale
