// Finds the newest usable checkpoint of a run, or the best one.
#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/checkpoint/reader.h"

namespace shale {

struct NewestCheckpoint {
  std::string path;                      // Empty if there is no checkpoint at all.
  std::vector<std::string> passed_over;  // One message per newer, or better, checkpoint that is damaged.
};

// Calls `use` with the checkpoints in `folder`, newest first, until a call succeeds. Skips a checkpoint if opening it
// or `use` fails with an error that means damage (DataLoss, InvalidArgument, NotFound), or if it holds another step
// than its folder's name says. Returns any other error. Returns DataLoss with all reasons if there are checkpoints and
// every one is damaged.
absl::StatusOr<NewestCheckpoint> UseNewestCheckpoint(const std::string& folder,
                                                     absl::FunctionRef<absl::Status(const CheckpointReader&)> use);

// Which checkpoint of a run is meant. The best one has the lowest loss of an evaluation (checkpoint.keep_best).
enum class WhichCheckpoint { kNewest, kBest };
// Returns the value that is written "newest" or "best", or InvalidArgument with the allowed ones.
absl::StatusOr<WhichCheckpoint> ParseWhichCheckpoint(absl::string_view text);

// Does what UseNewestCheckpoint does, with the newest or the best checkpoint first. Returns NotFound if the best is
// wanted, and there are checkpoints but none with the loss of an evaluation.
absl::StatusOr<NewestCheckpoint> UseCheckpoint(WhichCheckpoint which, const std::string& folder,
                                               absl::FunctionRef<absl::Status(const CheckpointReader&)> use);

}  // namespace shale
