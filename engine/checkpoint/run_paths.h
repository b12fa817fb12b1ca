// Where the parts of a run folder lie.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace shale {

// Names within a run folder.
inline constexpr char kRunJob[] = "job.textproto";
inline constexpr char kRunCheckpoints[] = "checkpoints";
inline constexpr char kRunHf[] = "hf";  // Copies of the files of model.hf_folder. Only runs that have one have it.

// Return the paths of these in `run_folder`.
std::string RunJobPath(absl::string_view run_folder);
std::string RunCheckpointsPath(absl::string_view run_folder);
std::string RunHfPath(absl::string_view run_folder);
// Returns the run folder that contains a checkpoint. Does not check that it is one.
std::string RunOfCheckpoint(absl::string_view checkpoint);

}  // namespace shale
