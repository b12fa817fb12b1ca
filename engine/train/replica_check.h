// The check that the state changes only by updates, and that copies of it on several ranks are still equal
// (runtime.check_every_steps).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/state/state_digest.h"
#include "sharding/mesh.h"

namespace shale {

// What a rank held before the update of a step, and holds after it.
struct RankDigest {
  int64_t rank = 0;
  StateDigest state;
  double loss = 0, squared_norm = 0;  // As summed over the ranks: each rank has the sums.
  // Only of steps that are checked.
  std::optional<StateDigest> before;  // Before the update.
  bool changed = false;               // `before` is not what the update of the step before had left.
};

// Convert the digests of a process's ranks into a message, and append those of a message to `digests`. Returns Internal
// if it is not such a message.
std::string SerializeDigests(absl::Span<const RankDigest> digests);
absl::Status ParseDigests(absl::string_view message, std::vector<RankDigest>& digests);

// Returns DataLoss if the state of a rank changed without an update, or if ranks differ in bits in what they should
// hold alike before or after the update of step `step`. The message says in what, and names the ranks: of those that
// should be alike, those that differ from the most others, or all if no more ranks agree than disagree. `ranks` are all
// ranks of the mesh, in any order.
absl::Status CheckReplicas(const Mesh& mesh, int64_t step, std::vector<RankDigest> ranks);

}  // namespace shale
