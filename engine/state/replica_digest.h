// ReplicaDigest: digests of the state of which several ranks hold copies.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/memory/plan.h"
#include "engine/runtime/rank_runtime.h"
#include "engine/step/state.h"

namespace shale {

// CRC-32Cs of a rank's weights, masters and optimizer states, by who holds the same.
struct ReplicaDigest {
  uint32_t everywhere = 0;  // What every rank holds. The CRC of nothing under FULL_SHARD.
  uint32_t column = 0;      // The rank's shards, which the other ranks of its column of the mesh hold too.
};

// Reads the state of a rank in the persistent buffers of a program with this plan, and the shards only if the mesh has
// replicas. Call it on the rank's launching thread while no program runs. Returns the errors of the device.
absl::StatusOr<ReplicaDigest> DigestOfReplicas(const JobState& state, const MemoryPlan& plan, RankRuntime& rank);

}  // namespace shale
