// Says which accumulations go with which strategies.
#pragma once

#include "absl/status/status.h"
#include "engine/step/options_enums.h"
#include "sharding/mesh.h"

namespace shale {

// Returns InvalidArgument if the accumulation does not exist for the strategy. The message names the strategy that has
// it:
//   DDP or ZERO1 with SHARDED: use ZERO2.
//   ZERO2 with NO_SYNC: use ZERO1.
// AUTO goes with every strategy.
absl::Status CheckCombination(Strategy strategy, Accumulation accumulation);

// Returns OK if the sums of gradients can be stored in bf16, otherwise InvalidArgument with what to choose. They can if
// backward does not write to them: not where a rank holds full gradients in fp32 anyway. AUTO goes if any accumulation
// does.
absl::Status CheckGradientShards(Strategy strategy, Accumulation accumulation, const Mesh& mesh);

// Returns OK if a job can offload these parts of its state, otherwise InvalidArgument. `has_moments` says whether its
// optimizer keeps states, and `has_masters` whether its weights have masters or low bits. Parameters need FULL_SHARD.
absl::Status CheckStateOffload(const StateOffload& offload, Strategy strategy, bool has_moments, bool has_masters);

// Returns InvalidArgument if `offload` names a part of the state that an update on `device` keeps in host memory
// anyway.
absl::Status CheckUpdateDevice(UpdateDevice device, const StateOffload& offload);

}  // namespace shale
