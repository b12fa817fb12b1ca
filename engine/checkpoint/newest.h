// The newest checkpoint of a run that is of use.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/reader.h"

namespace shale {

struct NewestCheckpoint {
  std::string path;                      // Empty: there is none at all.
  std::vector<std::string> passed_over;  // Newer ones that are damaged, each with the reason.
};

// Calls `use` with the checkpoints in `folder`, newest first, until it succeeds. One that is damaged, which opening or
// using it shows (DataLoss, InvalidArgument, NotFound), is passed over; any other error of `use` is returned. DataLoss,
// with all reasons, when there are checkpoints and every one is damaged.
absl::StatusOr<NewestCheckpoint> UseNewestCheckpoint(const std::string& folder,
                                                     absl::FunctionRef<absl::Status(const CheckpointReader&)> use);

}  // namespace shale
