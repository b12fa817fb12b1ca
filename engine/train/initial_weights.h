// Sets the weights of a run that does not resume from a checkpoint.
#pragma once

#include "absl/status/status.h"
#include "engine/config/job.h"
#include "engine/state/local_state.h"

namespace shale {

// Sets the weights of all local ranks to those of job.hf_folder, or to random ones (FillInitialValues) if it is empty.
// Sets adapters to those of job.adapter_folder likewise. Returns InvalidArgument if a folder holds another model or
// other adapters, or the error of reading it.
absl::Status SetInitialWeights(const Job& job, LocalState& state);

}  // namespace shale
