#include "engine/compile/step/options_enums.h"

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

absl::Status CheckGradientShards(Strategy strategy, Accumulation accumulation, const Mesh& mesh) {
  const auto refuse = [](const auto&... why) {
    return absl::InvalidArgumentError(
        absl::StrCat("BF16 stores the sums of gradients over micro-batches in shards, and ", why...));
  };
  if (strategy < Strategy::kZero2) {
    return refuse("strategy ", ToString(strategy),
                  " sums the full gradients in fp32; use strategy ZERO2 or FULL_SHARD, or gradient_shards FP32");
  }
  if (accumulation == Accumulation::kNoSync) {
    return refuse(
        "accumulation NO_SYNC sums the full gradients in fp32; use SHARDED or LAYERED, or "
        "gradient_shards FP32");
  }
  if (mesh.shard == 1 && mesh.replicate > 1) {
    return refuse(
        "with shard_ranks 1 each rank sums the full gradients in fp32; use more shard_ranks, or "
        "gradient_shards FP32");
  }
  return absl::OkStatus();
}

absl::Status CheckReduce(Strategy strategy, const Mesh& mesh) {
  const auto refuse = [](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat("BF16 sends gradients to the rank that updates them, and ", why...));
  };
  if (strategy == Strategy::kDdp) {
    return refuse("with strategy DDP each rank updates all; use ZERO1, ZERO2 or FULL_SHARD, or reduce FP32");
  }
  if (mesh.shard == 1 && mesh.replicate > 1) {
    return refuse("with shard_ranks 1 each rank updates all; use more shard_ranks, or reduce FP32");
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
    return refuse("MASTERS",
                  "the weights are their own masters; leave it out, or use compute BF16 with master MASTER_FP32 or "
                  "SPLIT, or compute FP16");
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
