// Sets the weights of a run that does not resume from a checkpoint.
#pragma once

#include "absl/status/status.h"
#include "engine/config/job.h"
#include "engine/state/local_state.h"

namespace shale {

// Sets the weights of all local ranks to those of job.hf_folder, or to random ones (FillInitialValues) if it is empty.
// Returns InvalidArgument if the folder holds another model, or the error of reading the folder.
absl::Status SetInitialWeights(const Job& job, LocalState& state);

}  // namespace shale
