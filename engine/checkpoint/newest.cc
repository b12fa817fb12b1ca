#include "engine/checkpoint/newest.h"

#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/checkpoint/run_paths.h"
#include "engine/checkpoint/saved_file.h"
#include "engine/checkpoint/store.h"
#include "kernels/check.h"

namespace shale {
namespace {

absl::Status Use(const CheckpointPath& candidate, absl::FunctionRef<absl::Status(const CheckpointReader&)> use) {
  SHALE_ASSIGN_OR_RETURN(const CheckpointReader checkpoint, CheckpointReader::Open(candidate.path));
  if (checkpoint.manifest().step != candidate.step) {
    return absl::InvalidArgumentError(
        absl::StrCat(candidate.path, " holds step ", checkpoint.manifest().step, ": the folder was renamed"));
  }
  return use(checkpoint);
}

absl::StatusOr<NewestCheckpoint> UseFirst(const std::vector<CheckpointPath>& candidates, const std::string& folder,
                                          absl::FunctionRef<absl::Status(const CheckpointReader&)> use) {
  NewestCheckpoint newest;
  for (const CheckpointPath& candidate : candidates) {
    const absl::Status status = Use(candidate, use);
    if (status.ok()) {
      newest.path = candidate.path;
      return newest;
    }
    if (!IsDamage(status)) return status;
    newest.passed_over.emplace_back(status.message());
  }
  if (newest.passed_over.empty()) return newest;
  return absl::DataLossError(
      absl::StrCat("every checkpoint in ", folder, " is damaged:\n", absl::StrJoin(newest.passed_over, "\n")));
}

}  // namespace

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

absl::StatusOr<NewestCheckpoint> UseNewestCheckpoint(const std::string& folder,
                                                     absl::FunctionRef<absl::Status(const CheckpointReader&)> use) {
  return UseCheckpoint(WhichCheckpoint::kNewest, folder, use);
}

absl::StatusOr<WhichCheckpoint> ParseWhichCheckpoint(absl::string_view text) {
  if (text == "newest") return WhichCheckpoint::kNewest;
  if (text == "best") return WhichCheckpoint::kBest;
  return absl::InvalidArgumentError(absl::StrCat("found \"", text, "\"; allowed: newest, best"));
}

absl::StatusOr<NewestCheckpoint> UseCheckpoint(WhichCheckpoint which, const std::string& folder,
                                               absl::FunctionRef<absl::Status(const CheckpointReader&)> use) {
  SHALE_ASSIGN_OR_RETURN(std::vector<CheckpointPath> candidates, ListCheckpoints(folder));
  if (which == WhichCheckpoint::kNewest || candidates.empty()) return UseFirst(candidates, folder, use);
  candidates = BestFirst(std::move(candidates));
  if (!candidates.empty()) return UseFirst(candidates, folder, use);
  return absl::NotFoundError(
      absl::StrCat("no checkpoint in ", folder,
                   " has the loss of an evaluation; a run records them with checkpoint.keep_best=true"));
}

}  // namespace shale
