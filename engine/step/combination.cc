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

absl::Status CheckStateOffload(const StateOffload& offload, Strategy strategy, bool has_moments, bool has_masters) {
  const auto refuse = [](absl::string_view part, const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(part, " cannot be offloaded: ", why...));
  };
  if (offload.moments && !has_moments) {
    return refuse("MOMENTS", "the optimizer keeps no states; leave it out");
  }
  if (offload.masters && !has_masters) {
    return refuse(
        "MASTERS",
        "the weights are their own masters; leave it out, or use compute BF16 with master MASTER_FP32 or SPLIT");
  }
  if (offload.parameters && strategy != Strategy::kFullShard) {
    return refuse("PARAMETERS", "strategy ", ToString(strategy),
                  " uses the weights where they lie; use FULL_SHARD, which gathers them for each use, or leave it out");
  }
  return absl::OkStatus();
}

absl::Status CheckUpdateDevice(UpdateDevice device, const StateOffload& offload) {
  if (device == UpdateDevice::kSame || (!offload.moments && !offload.masters)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "an update on the HOST keeps moments and masters in host memory for good; leave MOMENTS and MASTERS out");
}

}  // namespace shale
