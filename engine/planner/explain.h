// What a plan means, in this job's own numbers.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/planner/job_plan.h"

namespace shale {

// Bytes and times of each collective of a program: one rank's payload.
struct CommunicationSummary {
  int64_t gathers = 0, reductions = 0, all_reduces = 0;              // Per step; the two scalars' all-reduces included.
  int64_t gathered_bytes = 0, reduced_bytes = 0, all_reduced_bytes = 0;  // Full vectors' bytes, per step.
  // What one rank sends in a ring: (W - 1) / W of gathered and reduced bytes, twice that of all-reduced ones.
  int64_t sent_bytes = 0;
};
CommunicationSummary SummarizeCommunication(const StepProgram& program, int64_t ranks);

// Floating point operations of one rank in one step, by phase.
struct FlopsSummary {
  double forward = 0, recompute = 0, backward = 0;
};
FlopsSummary SummarizeFlops(const StepProgram& program);

// The plan as `train` prints it and plan.txt keeps it: model, batch, strategy and schedule with the reason, memory report,
// communication.
std::string PlanText(const Job& job, const JobPlan& plan);

// Answers what people ask of their trainers: what K micro-batches add and why, what the optimizer step adds, what each
// retention saves and costs in FLOPs, what accumulating unsharded (no_sync) would cost, where every byte goes.
absl::StatusOr<std::string> ExplainText(const Job& job, const JobPlan& plan, const Ops& ops);

}  // namespace shale
