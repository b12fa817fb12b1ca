// The handles of jobs, the text forms of plans, and the model that a program brings to its jobs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/c/handles.h"
#include "engine/c/shale_model.h"
#include "engine/compile/memory/machine.h"
#include "engine/compile/model/config.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/job_plan.h"

namespace shale::c {

Handles<const Job>& Jobs();

// Returns overrides of the caller as strings.
absl::StatusOr<std::vector<std::string>> TakeOverrides(const char* const* overrides, size_t count);

// Returns a plan in the form SHALE_PLAN_*, or InvalidArgument for another number.
absl::StatusOr<std::string> PlanIn(int32_t form, const Job& job, const JobPlan& plan, const Machine& machine);

// Returns the model, or InvalidArgument for a struct that is wrong.
absl::StatusOr<CustomModel> MakeModel(const shale_model* model);

// Gives a job that is only planned the model, unless `model` is null. Returns the errors of MakeModel and SetModel.
absl::Status GiveModel(const shale_model* model, Job& job);

}  // namespace shale::c
