// Decides everything that a job leaves open, and plans it. This is the only way from a job as it was written to a job
// that runs.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/config/data_facts.h"
#include "engine/config/job.h"
#include "engine/memory/machine.h"
#include "engine/planner/job_plan.h"

namespace shale {

// A job in which everything is decided, with its plan. Keep it const, because the plan would not follow a change of the
// job.
struct ResolvedJob {
  Job job;
  JobPlan plan;
};

// Decides, in this order: the format of the data and the vocabulary (from `data`), the number of tokens in a chunk of
// the loss, the accumulation and everything else in the plan, the threads of a rank and what computes matmuls (both
// from `machine`). What the job itself sets stays as it is. Allocates nothing on devices. The result does not refer to
// `machine`.
//
// Returns the errors of ValidateJob, and then those of PlanJob, which `limits` and `refusal` are for.
absl::StatusOr<ResolvedJob> ResolveJob(Job job, const DataFacts& data, const Machine& machine,
                                       const WorkLimits& limits = {}, Refusal* refusal = nullptr);

// Does the same for a job that may run on another machine than `here`, and that may not fit, with the plan of
// PlanJobForAnywhere, which writes `remark` and `refusal`. The threads of a rank are those of `here`.
absl::StatusOr<ResolvedJob> ResolveJobForAnywhere(Job job, const DataFacts& data, const Machine& here,
                                                  std::string& remark, std::optional<Refusal>& refusal);

}  // namespace shale
