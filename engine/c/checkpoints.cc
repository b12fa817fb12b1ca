#include "engine/c/checkpoints.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "engine/api/checkpoint.h"
#include "engine/c/calls.h"
#include "kernels/check.h"

namespace shale::c {

absl::Status UseCheckpoint(const char* folder, absl::FunctionRef<absl::Status(const CheckpointReader&)> use) {
  SHALE_RETURN_IF_ERROR(Require(folder, "folder"));
  const absl::StatusOr<CheckpointReader> checkpoint = CheckpointReader::Open(folder);
  if (checkpoint.ok()) return use(*checkpoint);
  if (!absl::IsNotFound(checkpoint.status())) return checkpoint.status();
  // Only a damaged checkpoint makes way for an older one.
  absl::Status used;
  const auto use_if_intact = [&](const CheckpointReader& candidate) {
    used = use(candidate);
    return absl::IsDataLoss(used) ? used : absl::OkStatus();
  };
  SHALE_ASSIGN_OR_RETURN(const NewestCheckpoint newest, UseNewestCheckpoint(folder, use_if_intact));
  if (!newest.path.empty()) return used;
  return absl::NotFoundError(absl::StrCat(folder, " is no checkpoint, and there is none in it"));
}

}  // namespace shale::c
