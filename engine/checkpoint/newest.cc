#include "engine/checkpoint/newest.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
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

}  // namespace

absl::StatusOr<NewestCheckpoint> UseNewestCheckpoint(const std::string& folder,
                                                     absl::FunctionRef<absl::Status(const CheckpointReader&)> use) {
  SHALE_ASSIGN_OR_RETURN(const std::vector<CheckpointPath> candidates, ListCheckpoints(folder));
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

}  // namespace shale
