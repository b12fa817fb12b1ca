#include "engine/checkpoint/run_paths.h"

#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "engine/io/file.h"

namespace shale {

std::string RunJobPath(absl::string_view run_folder) { return JoinPath(run_folder, kRunJob); }
std::string RunCheckpointsPath(absl::string_view run_folder) { return JoinPath(run_folder, kRunCheckpoints); }
std::string RunFailuresPath(absl::string_view run_folder) { return JoinPath(run_folder, kRunFailures); }
std::string RunHfPath(absl::string_view run_folder) { return JoinPath(run_folder, kRunHf); }
std::string RunOfCheckpoint(absl::string_view checkpoint) { return JoinPath(checkpoint, "../.."); }

absl::Status NoCheckpointIn(const std::string& checkpoints) {
  constexpr absl::string_view kGive =
      "; give the folder of a run: runs/NAME, unless telemetry.run_folder names another";
  const auto is_there = [](const std::string& path) { return access(path.c_str(), F_OK) == 0; };
  const std::string run = std::filesystem::path(checkpoints).parent_path().string();
  std::string why = "the run has saved none yet; it does at its end, and every checkpoint.every_steps steps";
  if (!is_there(run)) {
    why = absl::StrCat("there is no folder ", run, kGive);
  } else if (!is_there(RunJobPath(run))) {
    why = absl::StrCat(run, " has no job.textproto, so it is no run's", kGive);
  }
  return absl::NotFoundError(absl::StrCat("there is no checkpoint in ", checkpoints, ": ", why));
}

}  // namespace shale
