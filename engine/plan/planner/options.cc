#include "engine/plan/planner/options.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/compile/step/options.h"
#include "engine/compile/step/options_enums.h"
#include "engine/plan/planner/job_plan.h"
#include "kernels/integers.h"

namespace shale {
namespace {

using Query = const OptionQuery&;

bool Alone(Query q) { return q.use == OptionUse::kAlone; }
bool OnGpu(Query q) { return q.job.runtime.device != DeviceType::kCpu; }

// Returns the value of a switch if it applies.
Values If(bool applies, absl::string_view value) { return applies ? Values{std::string(value)} : Values{}; }

// Returns the settings that change the job's activation checkpointing to this one of all blocks, with the job's name
// patterns. Returns none if it has it.
Settings Checkpointing(const Job& job, CheckpointingPreset preset, int64_t segment_blocks = 1,
                       Segments segments = Segments::kGiven) {
  const ActivationCheckpointingConfig& now = job.activation_checkpointing;
  if (now ==
      ActivationCheckpointingConfig{
          .preset = preset, .segment_blocks = segment_blocks, .segments = segments, .recompute = now.recompute}) {
    return {};
  }
  Settings settings;
  const auto set = [&](bool applies, absl::string_view field, absl::string_view value) {
    if (applies) settings.push_back({absl::StrCat("activation_checkpointing.", field), std::string(value)});
  };
  set(true, "preset", ToString(preset));
  set(now.every_nth != 1, "every_nth", "");
  set(now.first_layers + now.last_layers > 0, "first_layers", "");
  set(now.first_layers + now.last_layers > 0, "last_layers", "");
  set(now.segment_blocks != segment_blocks, "segment_blocks", segment_blocks == 1 ? "" : absl::StrCat(segment_blocks));
  set(now.segments != segments, "segments", segments == Segments::kSqrt ? "SQRT" : "");
  return settings;
}

// Returns the activation checkpointing that needs the least memory, or nothing if the job's own does.
Settings LeastCheckpointing(Query q) {
  using enum CheckpointingPreset;
  const int64_t layers = Layers(q.job.model);
  const bool offloads = q.use != OptionUse::kInArena && OnGpu(q);
  // Offloaded boundaries take no room in the arena, but boundaries inside a segment are not offloaded.
  if (offloads || layers < 2) return Checkpointing(q.job, kBlock);
  const ChosenBlocks all = {layers};
  const int64_t least = BoundariesHeld(all, SqrtSegmentBlocks(all));
  const int64_t own = q.job.activation_checkpointing.segment_blocks;
  if (BoundariesHeld(all, own) <= least && Checkpointing(q.job, kBlock, own).empty()) return {};
  return least < layers ? Checkpointing(q.job, kBlock, 1, Segments::kSqrt) : Checkpointing(q.job, kBlock);
}

std::vector<Settings> WithoutEmpty(std::vector<Settings> all) {
  std::erase_if(all, [](const Settings& settings) { return settings.empty(); });
  return all;
}

std::vector<Settings> Presets(Query q) {
  using enum CheckpointingPreset;
  if (!Alone(q)) return WithoutEmpty({LeastCheckpointing(q)});
  std::vector<Settings> all;
  for (CheckpointingPreset preset : {kCheap, kAttention, kFeedForward, kSublayers, kBlock}) {
    all.push_back(Checkpointing(q.job, preset));
  }
  return WithoutEmpty(std::move(all));
}

// Short segments recompute least if a block's activations are several times its input; SQRT saves the most memory.
std::vector<Settings> PresetsInSegments(Query q) {
  using enum CheckpointingPreset;
  std::vector<Settings> all;
  const int64_t layers = Layers(q.job.model);
  for (CheckpointingPreset preset : {kNone, kCheap, kSublayers, kBlock}) {
    for (int64_t blocks = 2; blocks <= std::min<int64_t>(3, layers); ++blocks) {
      all.push_back(Checkpointing(q.job, preset, blocks));
    }
    if (layers >= 2) all.push_back(Checkpointing(q.job, preset, 1, Segments::kSqrt));
  }
  return WithoutEmpty(std::move(all));
}

// Returns the values that move something to host memory and back, in case the host lacks the memory: both if each is
// asked by itself.
Values ToHostOrBack(Query q, bool can_move, const char* moved, bool can_return) {
  Values all;
  if (can_move && q.use != OptionUse::kInArena) all.push_back(moved);
  if (can_return && (Alone(q) || q.use == OptionUse::kInArena)) all.push_back("[]");
  return all;
}

Values Offload(Query q) {
  const std::vector<std::string>& names = q.job.memory.offload;
  const bool has_all = std::find(names.begin(), names.end(), "*") != names.end();
  return ToHostOrBack(q, OnGpu(q) && !has_all, "*", !names.empty());
}

std::vector<Settings> UpdateOnHost(Query q) {
  const bool can =
      OnGpu(q) && q.has_host_ops && q.job.optimizer.device != UpdateDevice::kHost && !StepOptionsFor(q.job).factors();
  if (!can || (!Alone(q) && q.use != OptionUse::kUpdatesOnTheHost)) return {};
  Settings settings = {{"optimizer.device", "HOST"}};
  const StateOffload& offload = q.job.memory.offload_state;
  if (offload.moments || offload.masters) {
    settings.push_back({"memory.offload_state", offload.parameters ? "[PARAMETERS]" : "[]"});
  }
  return {settings};
}

Values OffloadMoments(Query q) {
  if (!Alone(q) && !UpdateOnHost(q).empty()) return {};  // It will keep them in host memory.
  const bool can_move = OnGpu(q) && !StepOptionsFor(q.job).state_on_host().moments && HasStates(q.job.optimizer);
  return ToHostOrBack(q, can_move, "MOMENTS", q.job.memory.offload_state.any());
}

// Returns the strategies that shard more than the job's, each with an accumulation that it has.
std::vector<Settings> Strategies(Query q) {
  std::vector<Settings> all;
  const ShardingConfig& sharding = q.job.sharding;
  if (Alone(q) && sharding.ranks == 1) return {};
  for (Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kFullShard}) {
    if (strategy <= sharding.strategy) continue;
    all.push_back({{"sharding.strategy", std::string(ToString(strategy))}});
    if (sharding.accumulation != Accumulation::kAuto && !CheckCombination(strategy, sharding.accumulation).ok()) {
      all.back().push_back({"sharding.accumulation", "AUTO"});
    }
  }
  return all;
}

// Returns the larger groups over which the state may be sharded, the smallest first.
Values ShardRanksOf(Query q) {
  Values all;
  const int64_t ranks = q.job.sharding.ranks;
  for (int64_t shard = ShardRanks(q.job.sharding) + 1; shard <= ranks; ++shard) {
    if (ranks % shard == 0) all.push_back(absl::StrCat(shard));
  }
  return all;
}

// Accumulation AUTO has tried all of them already.
Values Accumulations(Query q) {
  Values all;
  const Accumulation now = q.job.sharding.accumulation;
  if (now == Accumulation::kAuto) return {};
  for (Accumulation other : AccumulationsFor(StepOptionsFor(q.job).gradient_shards)) {
    if (other != now && (Alone(q) || other == Accumulation::kSharded)) all.emplace_back(ToString(other));
  }
  return all;
}

bool Gathers(Query q) { return q.job.sharding.strategy == Strategy::kFullShard && ShardRanks(q.job.sharding) > 1; }

Values SplitMasters(Query q) {
  const PrecisionConfig& now = q.job.precision;
  return If(now.compute == ComputePrecision::kBFloat16 && now.master == MasterWeights::kFloat32, "SPLIT");
}

bool AfterBackward(Query q) { return q.job.optimizer.update == UpdateTime::kAfterBackward; }
bool Stops(Query q) { return q.job.optimizer.non_finite == NonFinite::kStop; }
bool ClipsAll(Query q) {
  return q.job.optimizer.max_gradient_norm > 0 && q.job.optimizer.clipping == Clipping::kGlobal;
}

// fp16 skips a step for the overflow of any gradient, so it knows all of them before it updates.
bool MayUpdateInBackward(Query q) {
  const StepOptions options = StepOptionsFor(q.job);
  return AfterBackward(q) && q.job.precision.compute != ComputePrecision::kFloat16 && !options.factors() &&
         !options.clips_groups();
}

// An update in backward, with all that it needs, of a job that does not update units by themselves yet.
std::vector<Settings> UpdateAndClipInBackward(Query q) {
  if (!MayUpdateInBackward(q) || (!ClipsAll(q) && !Stops(q))) return {};
  Settings settings = {{"optimizer.update", "IN_BACKWARD"}};
  if (ClipsAll(q)) settings.push_back({"optimizer.clipping", "PER_UNIT"});
  if (Stops(q)) settings.push_back({"optimizer.non_finite", "SKIP"});
  return {settings};
}

Values EightBitMoments(Query q) {
  const OptimizerConfig& now = q.job.optimizer;
  return If(now.kind == OptimizerKind::kAdamW && now.moments == Moments::kFloat32, "ADAMW_8BIT");
}

// The fields that optimizer.state LEAN presets, because it leaves alone what a job sets itself.
std::vector<Settings> LeanState(Query q) {
  if (q.job.precision.compute != ComputePrecision::kBFloat16) return {};
  OptimizerConfig lean = q.job.optimizer;
  SetLeanMoments(lean);
  Settings settings;
  if (q.job.precision.master != MasterWeights::kNone) settings.push_back({"precision.master", "NONE"});
  if (lean != q.job.optimizer) settings.push_back({"optimizer.moments", "BF16"});
  if (settings.empty()) return {};
  return {settings};
}

// Without workspace, cuDNN computes the gradients of attention by groups of heads that share their keys. The engine's
// own kernels, which compute attention in fp32 and of packed documents, have none.
Values LessWorkspace(Query q) {
  const RuntimeConfig& runtime = q.job.runtime;
  const bool has = OnGpu(q) && runtime.cudnn_attention && q.job.precision.compute != ComputePrecision::kFloat32 &&
                   q.job.data.packing != Packing::kPack && runtime.attention_workspace_bytes != 0;
  return If(has, "0");
}

// Halves the micro-batch again and again.
Values MicroBatches(Query q) {
  Values all;
  for (int64_t micro = q.job.batch.micro_batch / 2; micro >= 1; micro /= 2) all.push_back(absl::StrCat(micro));
  return all;
}

// With fewer ranks, each rank has a larger share of the machine's memory, unless the job sets both budgets. With more
// ranks, each rank may have a smaller share, but also needs less. There are never more ranks than sequences.
Values Ranks(Query q) {
  Values all;
  const int64_t ranks = q.job.sharding.ranks;
  if (q.job.memory.budget_bytes == 0 || q.job.memory.host_budget_bytes == 0) {
    for (int64_t fewer = ranks / 2; fewer >= 1; fewer /= 2) all.push_back(absl::StrCat(fewer));
  }
  if (q.job.sharding.strategy != Strategy::kDdp) {
    for (int64_t more = 2 * ranks; more <= 16 * ranks && more <= q.job.batch.global_batch; more *= 2) {
      all.push_back(absl::StrCat(more));
    }
  }
  return all;
}

FitRange MicroBatchRange(const Job& job) {
  return {.start = job.batch.micro_batch,
          .best = CeilDivide(job.batch.global_batch, job.sharding.ranks),
          .last = "a rank has no more sequences in a step"};
}

FitRange SequenceLengthRange(const Job& job) {
  // The end is never reached: the job cannot have much smaller values already.
  return {.start = job.batch.sequence_length, .best = int64_t{1} << 40};
}

// One rank may need less memory than several, because it gathers nothing. Very many ranks need more again, because of
// padding. With one micro-batch a step, gradients share bytes with activations. The fewest ranks with which that is so
// may fit, although fewer do not, nor more, because of their padding.
FitRange RanksRange(const Job& job) {
  return {.worst = std::max(job.sharding.ranks, job.batch.global_batch),
          .hint = CeilDivide(job.batch.global_batch, job.batch.micro_batch),
          .last = "there are no fewer ranks"};
}

constexpr int kBoth = kTogether | kHasOwnSection;
constexpr Option kOptions[] = {
    {"activation_checkpointing.preset", kBoth, nullptr, Presets, "", Cheapest::kLeastRecomputed},
    {"activation_checkpointing.preset", kHasOwnSection, nullptr, PresetsInSegments, "", Cheapest::kLeastRecomputed},
    {"memory.offload", kBoth, Offload},
    {"memory.offload_state", kBoth, OffloadMoments},
    {"optimizer.device", kBoth, nullptr, UpdateOnHost, "the CPU updates"},
    {"sharding.strategy", kBoth, nullptr, Strategies},
    {"sharding.shard_ranks", kBoth, ShardRanksOf},
    {"sharding.accumulation", kBoth, Accumulations, nullptr, "", Cheapest::kLeastSent},
    {"sharding.reshard_after_forward", kTogether,
     [](Query q) { return If(Gathers(q) && !q.job.sharding.reshard_after_forward, "true"); }},
    {"sharding.prefetch", kTogether, [](Query q) { return If(Gathers(q) && q.job.sharding.prefetch > 0, "0"); }},
    {"memory.loss_chunk_tokens", kTogether, [](Query q) { return If(LossChunkTokens(q.job) > 128, "128"); }},
    {"precision.master", kTogether, SplitMasters},
    {"optimizer.update", kBoth,
     [](Query q) { return If(MayUpdateInBackward(q) && !ClipsAll(q) && !Stops(q), "IN_BACKWARD"); }},
    {"runtime.attention_workspace_bytes", kTogether, LessWorkspace},
    {"checkpoint.asynchronous", kTogether, [](Query q) { return If(StepOptionsFor(q.job).snapshot, "false"); }},
    {"optimizer.update", kHasOwnSection, nullptr, UpdateAndClipInBackward,
     "clips and skips the gradients of each unit by themselves"},
    {"optimizer.rule", kNoFlags, EightBitMoments, nullptr, "moments in 8 bits, which may cost quality"},
    {"optimizer.state", kNoFlags, nullptr, LeanState,
     "lean state: bf16 with stochastic rounding, which may cost quality"},
    {"precision.gradient_shards", kNoFlags,
     [](Query q) { return If(q.job.precision.gradient_shards != GradientShards::kBFloat16, "BF16"); }, nullptr,
     "sums gradients in bf16 with stochastic rounding, which may cost quality"},
    {"precision.reduce", kNoFlags,
     [](Query q) {
       const StepOptions options = StepOptionsFor(q.job);
       const bool sends = options.mesh.shard > 1 && CheckReduce(options.strategy, options.mesh).ok();
       return If(sends && options.reduce != DType::kBFloat16, "BF16");
     },
     nullptr, "gradients leave a rank in bf16 with stochastic rounding, which may cost quality"},
    {"batch.micro_batch", kBoth, MicroBatches, nullptr, "", Cheapest::kFirst, MicroBatchRange},
    {"batch.sequence_length", kNoFlags, nullptr, nullptr, "", Cheapest::kFirst, SequenceLengthRange},
    {"sharding.ranks", kHasOwnSection, Ranks, nullptr, "", Cheapest::kFirst, RanksRange},
};

}  // namespace

absl::Span<const Option> Options() { return kOptions; }

std::vector<Settings> Option::SettingsFor(const OptionQuery& query) const {
  if (settings != nullptr) return settings(query);
  std::vector<Settings> all;
  for (std::string& value : values == nullptr ? Values{} : values(query)) {
    all.push_back({{std::string(path), std::move(value)}});
  }
  return all;
}

std::vector<Accumulation> AccumulationsFor(DType gradient_shards) {
  if (gradient_shards != DType::kFloat32) return {Accumulation::kSharded, Accumulation::kLayered};
  return {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered};
}

}  // namespace shale
