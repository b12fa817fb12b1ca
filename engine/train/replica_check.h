// The check that copies of the state on several ranks are still equal (runtime.check_every_steps).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/state/replica_digest.h"
#include "sharding/mesh.h"

namespace shale {

// What a rank holds after a step.
struct RankDigest {
  int64_t rank = 0;
  ReplicaDigest state;
  double loss = 0, squared_norm = 0;  // As summed over the ranks: each rank has the sums.
};

// Convert the digests of a process's ranks into a message, and append those of a message to `digests`. Returns Internal
// if it is not such a message.
std::string SerializeDigests(absl::Span<const RankDigest> digests);
absl::Status ParseDigests(absl::string_view message, std::vector<RankDigest>& digests);

// Returns DataLoss if ranks differ in bits in what they should hold alike after step `step`. The message says in what,
// and names those that differ from the most others, or all if no more ranks agree than disagree. `ranks` are all ranks
// of the mesh, in any order.
absl::Status CheckReplicas(const Mesh& mesh, int64_t step, std::vector<RankDigest> ranks);

}  // namespace shale
