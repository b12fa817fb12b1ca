#include "engine/plan/search/axes.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "engine/compile/step/options.h"
#include "engine/compile/step/options_enums.h"
#include "engine/plan/planner/job_plan.h"
#include "kernels/integers.h"

namespace shale::internal {
namespace {

std::vector<Settings> ValuesOf(absl::string_view path, const std::vector<std::string>& values) {
  std::vector<Settings> all;
  for (const std::string& value : values) all.push_back({{std::string(path), value}});
  return all;
}

bool OnGpu(const Job& job) { return job.runtime.device != DeviceType::kCpu; }

// The powers of two up to all sequences that a rank has in a step, and that number. The global batch stays.
std::vector<Settings> MicroBatches(const Job& job) {
  const int64_t most = CeilDivide(job.batch.global_batch, job.sharding.ranks);
  std::set<int64_t, std::greater<>> values = {most, std::min(job.batch.micro_batch, most)};
  for (int64_t micro = 1; micro < most; micro *= 2) values.insert(micro);
  std::vector<std::string> texts;
  for (const int64_t value : values) texts.push_back(absl::StrCat(value));
  return ValuesOf("batch.micro_batch", texts);
}

// The presets of all blocks, and in segments. The search itself finds fewer blocks (CheckpointingOf).
std::vector<Settings> Checkpointing(const Job& job) {
  std::vector<Settings> all;
  for (absl::string_view preset : {"NONE", "CHEAP", "ATTENTION", "FFN", "SUBLAYERS", "BLOCK"}) {
    all.push_back(CheckpointingOf(preset));
  }
  if (Layers(job.model) >= 4) all.push_back(CheckpointingOf("BLOCK", {{"segments", "SQRT"}}));
  return all;
}

std::vector<Settings> Accumulations(const Job& job) {
  if (AccumulationSteps(job.batch, job.sharding.ranks) == 1) return {};
  std::vector<std::string> values;
  for (const Accumulation value : AccumulationsFor(StepOptionsFor(job).gradient_shards)) {
    values.emplace_back(ToString(value));
  }
  return ValuesOf("sharding.accumulation", values);
}

// Each strategy leaves the accumulation to its own axis, whose setting comes later.
std::vector<Settings> Strategies(const Job& job) {
  if (job.sharding.ranks == 1) return {};
  std::vector<std::string> values;
  for (const Strategy value : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kFullShard}) {
    values.emplace_back(ToString(value));
  }
  return ValuesOf("sharding.strategy", values);
}

// The numbers of ranks that divide all ranks, by powers of two of the whole: rows of a mesh follow hosts.
std::vector<Settings> ShardRanksOf(const Job& job) {
  std::vector<std::string> values;
  const int64_t ranks = job.sharding.ranks;
  for (int64_t shard = 2; shard <= ranks; shard *= 2) {
    if (ranks % shard == 0) values.push_back(absl::StrCat(shard));
  }
  return values.size() < 2 ? std::vector<Settings>() : ValuesOf("sharding.shard_ranks", values);
}

bool Gathers(const Job& job) { return job.sharding.strategy == Strategy::kFullShard && ShardRanks(job.sharding) > 1; }

std::vector<Settings> Resharding(const Job& job) {
  if (!Gathers(job)) return {};
  return ValuesOf("sharding.reshard_after_forward", {"false", "true"});
}

std::vector<Settings> Prefetch(const Job& job) {
  if (!Gathers(job)) return {};
  return ValuesOf("sharding.prefetch", {"2", "1", "0"});
}

// In backward only where that clips and skips nothing, because it would do so unit by unit.
std::vector<Settings> UpdateTimes(const Job& job) {
  const bool alike = job.optimizer.max_gradient_norm == 0 && job.optimizer.non_finite != NonFinite::kStop &&
                     job.precision.compute != ComputePrecision::kFloat16 && !StepOptionsFor(job).factors();
  if (!alike) return {};
  return ValuesOf("optimizer.update", {"AFTER_BACKWARD", "IN_BACKWARD"});
}

std::vector<Settings> Offload(const Job& job) {
  if (!OnGpu(job)) return {};
  return ValuesOf("memory.offload", {"[]", "[\"*\"]"});
}

std::vector<Settings> OffloadState(const Job& job) {
  if (!OnGpu(job) || job.optimizer.device == UpdateDevice::kHost) return {};
  return ValuesOf("memory.offload_state", {"[]", "[MOMENTS]"});
}

std::vector<Settings> LossChunks(const Job& job) {
  const int64_t tokens = job.batch.micro_batch * job.batch.sequence_length;
  std::vector<std::string> values;
  for (int64_t chunk = 16384; chunk >= 512; chunk /= 2) {
    if (chunk <= tokens) values.push_back(absl::StrCat(chunk));
  }
  return values.size() < 2 ? std::vector<Settings>() : ValuesOf("memory.loss_chunk_tokens", values);
}

constexpr Axis kAxes[] = {
    {"batch.micro_batch", MicroBatches},
    {"activation_checkpointing.preset", Checkpointing},
    {"sharding.strategy", Strategies},
    {"sharding.shard_ranks", ShardRanksOf},
    {"sharding.accumulation", Accumulations},
    {"sharding.reshard_after_forward", Resharding},
    {"sharding.prefetch", Prefetch},
    {"optimizer.update", UpdateTimes},
    {"memory.offload", Offload},
    {"memory.offload_state", OffloadState},
    {"memory.loss_chunk_tokens", LossChunks},
};

}  // namespace

Settings CheckpointingOf(absl::string_view preset, const std::vector<Override>& fields) {
  // Sets every field, so that none of the job's own remains.
  Settings all = {{"activation_checkpointing.preset", std::string(preset)}};
  for (absl::string_view name :
       {"every_nth", "first_layers", "last_layers", "segment_blocks", "segments", "recompute"}) {
    std::string value = name == "recompute" ? "[]" : "";
    for (const Override& field : fields) value = field.path == name ? field.value : value;
    all.push_back({absl::StrCat("activation_checkpointing.", name), value});
  }
  return all;
}

absl::Span<const Axis> Axes() { return kAxes; }

}  // namespace shale::internal
