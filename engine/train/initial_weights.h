// The weights that a run begins with if it goes on from no checkpoint.
#pragma once

#include <vector>

#include "absl/status/status.h"
#include "engine/config/job.h"
#include "engine/runtime/world.h"
#include "engine/state/rank_state.h"

namespace shale {

// Sets the weights of all ranks: those of job.hf_folder if there is one, else random ones (FillInitialValues).
// InvalidArgument if the folder holds another model; else the errors of reading it.
absl::Status SetInitialWeights(const Job& job, World& world, std::vector<RankState>& ranks);

}  // namespace shale
