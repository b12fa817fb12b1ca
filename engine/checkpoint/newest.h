// Finds the newest usable checkpoint of a run.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/reader.h"

namespace shale {

struct NewestCheckpoint {
  std::string path;                      // Empty if there is no checkpoint at all.
  std::vector<std::string> passed_over;  // One message per newer checkpoint that is damaged.
};

// Calls `use` with the checkpoints in `folder`, newest first, until a call succeeds. Skips a checkpoint if opening it
// or `use` fails with an error that means damage (DataLoss, InvalidArgument, NotFound), or if it holds another step
// than its folder's name says. Returns any other error. Returns DataLoss with all reasons if there are checkpoints and
// every one is damaged.
absl::StatusOr<NewestCheckpoint> UseNewestCheckpoint(const std::string& folder,
                                                     absl::FunctionRef<absl::Status(const CheckpointReader&)> use);

}  // namespace shale
