// Sets the weights of a run that does not resume from a checkpoint.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/config/job.h"
#include "engine/state/local_state.h"

namespace shale {

// Sets the weights of all local ranks to those of job.hf_folder, or to random ones (FillInitialValues) if it is empty.
// Sets adapters to those of job.adapter_folder likewise. Returns InvalidArgument if a folder holds another model or
// other adapters, or the error of reading it. If `base_digest` is not null, sets it as FillOptions::digest_of_frozen.
absl::Status SetInitialWeights(const Job& job, LocalState& state, uint64_t* base_digest = nullptr);

// Sets the frozen weights to those of the base, and `digest` as FillOptions::digest_of_frozen. Returns the errors of
// SetInitialWeights. REQUIRES: HasBase(job).
absl::Status SetBase(const Job& job, LocalState& state, uint64_t& digest);

}  // namespace shale
