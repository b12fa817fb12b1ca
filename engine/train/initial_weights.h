// The weights that a run begins with if it goes on from no checkpoint.
#pragma once

#include "absl/status/status.h"
#include "engine/config/job.h"
#include "engine/state/local_state.h"

namespace shale {

// Sets the weights of all local ranks: those of job.hf_folder if there is one, else random ones (FillInitialValues).
// InvalidArgument if the folder holds another model; else the errors of reading it.
absl::Status SetInitialWeights(const Job& job, LocalState& state);

}  // namespace shale
