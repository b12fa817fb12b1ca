#include "engine/step/combination.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace shale {

absl::Status CheckCombination(Strategy strategy, Accumulation accumulation) {
  const auto refuse = [&](absl::string_view advice) {
    return absl::InvalidArgumentError(
        absl::StrCat(ToString(accumulation), " does not go with strategy ", ToString(strategy), ": ", advice));
  };
  if (accumulation == Accumulation::kSharded && strategy == Strategy::kDdp) {
    return refuse("nothing is sharded to reduce into; use strategy ZERO2, or accumulation NO_SYNC or LAYERED");
  }
  if (accumulation == Accumulation::kSharded && strategy == Strategy::kZero1) {
    return refuse("sharded gradients are strategy ZERO2; use that, or accumulation NO_SYNC or LAYERED");
  }
  if (accumulation == Accumulation::kNoSync && strategy == Strategy::kZero2) {
    return refuse("unsharded gradients are strategy ZERO1; use that, or accumulation SHARDED or LAYERED");
  }
  return absl::OkStatus();
}

}  // namespace shale
