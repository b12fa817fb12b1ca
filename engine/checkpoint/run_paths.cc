#include "engine/checkpoint/run_paths.h"

#include "engine/io/file.h"

namespace shale {

std::string RunJobPath(absl::string_view run_folder) { return JoinPath(run_folder, kRunJob); }
std::string RunCheckpointsPath(absl::string_view run_folder) { return JoinPath(run_folder, kRunCheckpoints); }
std::string RunFailuresPath(absl::string_view run_folder) { return JoinPath(run_folder, kRunFailures); }
std::string RunHfPath(absl::string_view run_folder) { return JoinPath(run_folder, kRunHf); }
std::string RunOfCheckpoint(absl::string_view checkpoint) { return JoinPath(checkpoint, "../.."); }

}  // namespace shale
