// A model that a program brings through the C interface.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/c/shale_model.h"
#include "engine/compile/model/config.h"
#include "engine/plan/config/job.h"

namespace shale::c {

// Returns the model, or InvalidArgument for a struct that is wrong.
absl::StatusOr<CustomModel> MakeModel(const shale_model* model);

// Gives a job that is only planned the model, unless `model` is null. Returns the errors of MakeModel and SetModel.
absl::Status GiveModel(const shale_model* model, Job& job);

}  // namespace shale::c
