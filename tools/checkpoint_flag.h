// The flag --checkpoint of the tools that use the model of a run.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/newest.h"

namespace shale {

inline constexpr char kCheckpointHelp[] =
    "Which checkpoint of the run: the newest intact one, or the one with the best evaluation.";
// Returns what --checkpoint names, or InvalidArgument.
absl::StatusOr<WhichCheckpoint> WhichCheckpointOf(const std::string& flag);

}  // namespace shale
