#include "engine/step/combination.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace shale {

absl::Status CheckCombination(Strategy strategy, Schedule schedule) {
  const auto refuse = [&](absl::string_view advice) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToString(schedule), " does not go with strategy ", ToString(strategy), ": ", advice));
  };
  if (schedule == Schedule::kSharded && strategy == Strategy::kNone) {
    return refuse("nothing is sharded to reduce into; use strategy GRADIENTS, or schedule DEFERRED or LAYERED");
  }
  if (schedule == Schedule::kSharded && strategy == Strategy::kOptimizer) {
    return refuse("sharded gradients are strategy GRADIENTS; use that, or schedule DEFERRED or LAYERED");
  }
  if (schedule == Schedule::kDeferred && strategy == Strategy::kGradients) {
    return refuse("unsharded gradients are strategy OPTIMIZER; use that, or schedule SHARDED or LAYERED");
  }
  return absl::OkStatus();
}

}  // namespace shale
