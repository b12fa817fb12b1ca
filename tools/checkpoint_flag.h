// The flags --checkpoint and --base of the tools that use the model of a run.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/api/checkpoint.h"

namespace shale {

inline constexpr char kCheckpointHelp[] =
    "Which checkpoint of the run: the newest intact one, or the one with the best evaluation.";
inline constexpr char kBaseHelp[] =
    "Of a run with adapters: the folder of their base, if it is not where the run read it.";
// Returns what --checkpoint names, or InvalidArgument.
absl::StatusOr<WhichCheckpoint> WhichCheckpointOf(const std::string& flag);

}  // namespace shale
