#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/api/checkpoint.h"
#include "engine/files/checkpoint/shard_header.h"
#include "engine/files/checkpoint/store.h"
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

constexpr absl::string_view kWaysOn =
    " is damaged; nothing there was changed. If you have a whole copy of one, put it back into this folder and call "
    "this "
    "again, or let a run resume from where the copy lies (train --resume=COPY). Without a copy, train anew: in another "
    "run folder (train --set telemetry.run_folder=FOLDER), or in this one, which removes its checkpoints (train "
    "--overwrite). What is wrong (inspect_checkpoint --verify --checkpoint=CHECKPOINT names the bytes):\n";

// `which` says which of the checkpoints in `folder` the candidates are, or is empty if they are all.
absl::StatusOr<NewestCheckpoint> UseFirst(const std::vector<CheckpointPath>& candidates, const std::string& folder,
                                          absl::string_view which,
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
      absl::StrCat("every checkpoint in ", folder, which, kWaysOn, absl::StrJoin(newest.passed_over, "\n")));
}

}  // namespace

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
  if (which == WhichCheckpoint::kNewest || candidates.empty()) return UseFirst(candidates, folder, "", use);
  candidates = BestFirst(std::move(candidates));
  if (!candidates.empty()) return UseFirst(candidates, folder, " that has the loss of an evaluation", use);
  return absl::NotFoundError(
      absl::StrCat("no checkpoint in ", folder,
                   " has the loss of an evaluation; a run records them with checkpoint.keep_best=true"));
}

}  // namespace shale
