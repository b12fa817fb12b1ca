// Gives a job the model that a program brings.
#pragma once

#include "absl/status/status.h"
#include "engine/config/job.h"

namespace shale {

// Sets job.model to `model` and validates the job. Leaves the job unchanged after an error. A job that a run recorded
// keeps its vocabulary, unless `model` sets one. This is how a program plans a job with its own model (ResolveJob); a
// trainer does it itself if TrainerOptions::model is set.
//
// Returns InvalidArgument if the job describes a model itself, or for the errors of ValidateJob; FailedPrecondition if
// the job was recorded with a model of another name or digest.
absl::Status SetModel(const CustomModel& model, Job& job);

}  // namespace shale
