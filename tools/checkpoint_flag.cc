#include "tools/checkpoint_flag.h"

#include "absl/strings/str_cat.h"

namespace shale {

absl::StatusOr<WhichCheckpoint> WhichCheckpointOf(const std::string& flag) {
  absl::StatusOr<WhichCheckpoint> which = ParseWhichCheckpoint(flag);
  if (which.ok()) return which;
  return absl::InvalidArgumentError(absl::StrCat("--checkpoint: ", which.status().message()));
}

}  // namespace shale
