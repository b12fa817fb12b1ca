// The names and paths of the parts of a run folder.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shale {

// Names within a run folder.
inline constexpr char kRunJob[] = "job.textproto";
inline constexpr char kRunCheckpoints[] = "checkpoints";
inline constexpr char kRunFailures[] = "failures";  // Exists only if the run has failed.
inline constexpr char kRunHf[] = "hf";              // Copies of files of model.hf_folder. Exists only if that was set.
// What process N > 0 of a run that is traced writes has this name and N. Process 0 reads and removes it at the end.
inline constexpr char kRunTracePart[] = "trace.process";

// Return the path of that part of `run_folder`.
std::string RunJobPath(absl::string_view run_folder);
std::string RunCheckpointsPath(absl::string_view run_folder);
std::string RunFailuresPath(absl::string_view run_folder);
std::string RunHfPath(absl::string_view run_folder);
// Returns the path of the run folder that contains a checkpoint. Does not check that it is a run folder.
std::string RunOfCheckpoint(absl::string_view checkpoint);

// Returns NotFound for the folder `checkpoints` of a run, in which there is no checkpoint. The message says what is
// there instead, and what to do.
absl::Status NoCheckpointIn(const std::string& checkpoints);

}  // namespace shale
