// The text forms of plans.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/config/job.h"
#include "engine/memory/machine.h"
#include "engine/planner/job_plan.h"

namespace shale::c {

// Returns a plan in the form SHALE_PLAN_*, or InvalidArgument for another number.
absl::StatusOr<std::string> PlanIn(int32_t form, const Job& job, const JobPlan& plan, const Machine& machine);

}  // namespace shale::c
