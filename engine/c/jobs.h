// The handles of jobs, and the text forms of plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/c/handles.h"
#include "engine/compile/memory/machine.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/job_plan.h"

namespace shale::c {

Handles<const Job>& Jobs();

// Returns overrides of the caller as strings.
absl::StatusOr<std::vector<std::string>> TakeOverrides(const char* const* overrides, size_t count);

// Returns a plan in the form SHALE_PLAN_*, or InvalidArgument for another number.
absl::StatusOr<std::string> PlanIn(int32_t form, const Job& job, const JobPlan& plan, const Machine& machine);

}  // namespace shale::c
