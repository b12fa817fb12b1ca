#include "engine/plan/planner/options.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/compile/step/options.h"
#include "engine/compile/step/options_enums.h"
#include "engine/plan/planner/accumulations.h"
#include "engine/plan/planner/job_plan.h"
#include "kernels/integers.h"

namespace shale {
namespace {

using Query = const OptionQuery&;

bool Alone(Query q) { return q.use == OptionUse::kAlone; }
bool OnGpu(const Job& job) { return job.runtime.device != DeviceType::kCpu; }

// Returns the settings that give one field each of these values.
std::vector<Settings> SettingsOf(absl::string_view path, const Values& values) {
  std::vector<Settings> all;
  for (const std::string& value : values) all.push_back({{std::string(path), value}});
  return all;
}

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
  const bool offloads = q.use != OptionUse::kInArena && OnGpu(q.job);
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

// The presets of all blocks, and in segments. The search itself finds fewer blocks and single tensors.
std::vector<Settings> AllPresets(const Job& job) {
  std::vector<Settings> all;
  for (absl::string_view preset : {"NONE", "CHEAP", "ATTENTION", "FFN", "SUBLAYERS", "BLOCK"}) {
    all.push_back(CheckpointingOf(preset));
  }
  if (Layers(job.model) >= 4) all.push_back(CheckpointingOf("BLOCK", {{"segments", "SQRT"}}));
  return all;
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
  return ToHostOrBack(q, OnGpu(q.job) && !has_all, "*", !names.empty());
}

std::vector<Settings> AllOffload(const Job& job) {
  if (!OnGpu(job)) return {};
  return SettingsOf("memory.offload", {"[]", "[\"*\"]"});
}

std::vector<Settings> AllOffloadState(const Job& job) {
  if (!OnGpu(job) || job.optimizer.device == UpdateDevice::kHost || !HasStates(job.optimizer)) return {};
  return SettingsOf("memory.offload_state", {"[]", "[MOMENTS]"});
}

std::vector<Settings> UpdateOnHost(Query q) {
  const bool can = OnGpu(q.job) && q.has_host_ops && q.job.optimizer.device != UpdateDevice::kHost &&
                   !StepOptionsFor(q.job).composed();
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
  const bool can_move = OnGpu(q.job) && !StepOptionsFor(q.job).state_on_host().moments && HasStates(q.job.optimizer);
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

// Each strategy leaves the accumulation to its own row, which is decided later, unless it does not have the job's.
std::vector<Settings> AllStrategies(const Job& job) {
  if (job.sharding.ranks == 1) return {};
  std::vector<Settings> all;
  const Accumulation accumulation = job.sharding.accumulation;
  for (const Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kFullShard}) {
    all.push_back(StrategyOf(strategy, job));
    const bool groups = strategy == Strategy::kDdp && job.sharding.shard_ranks > 0;
    if (groups) all.back().push_back({"sharding.shard_ranks", ""});
    if (accumulation != Accumulation::kAuto && !CheckCombination(strategy, accumulation).ok()) {
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

// The powers of two that divide the ranks, because rows of a mesh follow hosts; what the job has; and all ranks.
std::vector<Settings> AllShardRanks(const Job& job) {
  if (job.sharding.strategy == Strategy::kDdp) return {};
  Values values;
  const int64_t ranks = job.sharding.ranks, own = ShardRanks(job.sharding);
  for (int64_t shard = 2; shard <= ranks; ++shard) {
    const bool power = (shard & (shard - 1)) == 0 && ranks % shard == 0;
    if (power || shard == own || shard == ranks) values.push_back(absl::StrCat(shard));
  }
  return values.size() < 2 ? std::vector<Settings>() : SettingsOf("sharding.shard_ranks", values);
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

std::vector<Settings> AllAccumulations(const Job& job) {
  if (AccumulationSteps(job.batch, job.sharding.ranks) == 1) return {};
  Values values;
  for (const Accumulation value : AccumulationsFor(StepOptionsFor(job).gradient_shards)) {
    if (CheckCombination(job.sharding.strategy, value).ok()) values.emplace_back(ToString(value));
  }
  return SettingsOf("sharding.accumulation", values);
}

bool Gathers(const Job& job) { return job.sharding.strategy == Strategy::kFullShard && ShardRanks(job.sharding) > 1; }

std::vector<Settings> AllResharding(const Job& job) {
  return Gathers(job) ? SettingsOf("sharding.reshard_after_forward", {"false", "true"}) : std::vector<Settings>();
}

std::vector<Settings> AllPrefetch(const Job& job) {
  return Gathers(job) ? SettingsOf("sharding.prefetch", {"2", "1", "0"}) : std::vector<Settings>();
}

std::vector<Settings> AllLossChunks(const Job& job) {
  const int64_t tokens = job.batch.micro_batch * job.batch.sequence_length;
  Values values;
  for (int64_t chunk = 16384; chunk >= 512; chunk /= 2) {
    if (chunk <= tokens) values.push_back(absl::StrCat(chunk));
  }
  return values.size() < 2 ? std::vector<Settings>() : SettingsOf("memory.loss_chunk_tokens", values);
}

Values SplitMasters(Query q) {
  const PrecisionConfig& now = q.job.precision;
  return If(now.compute == ComputePrecision::kBFloat16 && now.master == MasterWeights::kFloat32, "SPLIT");
}

bool Stops(Query q) { return q.job.optimizer.non_finite == NonFinite::kStop; }
bool ClipsAll(Query q) {
  return q.job.optimizer.max_gradient_norm > 0 && q.job.optimizer.clipping == Clipping::kGlobal;
}

// fp16 skips a step for the overflow of any gradient, so it knows all of them before it updates.
bool MayUpdateInBackward(Query q) {
  const StepOptions options = StepOptionsFor(q.job);
  return q.job.optimizer.update == UpdateTime::kAfterBackward &&
         q.job.precision.compute != ComputePrecision::kFloat16 && !options.composed() && !options.clips_groups();
}

// In backward only where that clips nothing, because it would do so unit by unit. Where gradients that are not finite
// are skipped, it skips their unit alone.
std::vector<Settings> AllUpdateTimes(const Job& job) {
  const StepOptions options = StepOptionsFor(job);
  const bool alike = job.optimizer.max_gradient_norm == 0 && job.optimizer.non_finite != NonFinite::kStop &&
                     job.precision.compute != ComputePrecision::kFloat16 && !options.composed() &&
                     !options.clips_groups();
  if (!alike) return {};
  return SettingsOf("optimizer.update", {"AFTER_BACKWARD", "IN_BACKWARD"});
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
// own kernels have none. They compute attention in fp32 and of packed documents, and where they were measured to be
// faster: there the setting saves nothing.
Values LessWorkspace(Query q) {
  const RuntimeConfig& runtime = q.job.runtime;
  const bool has = OnGpu(q.job) && runtime.cudnn_attention.value_or(true) &&
                   q.job.precision.compute != ComputePrecision::kFloat32 && q.job.data.packing != Packing::kPack &&
                   runtime.attention_workspace_bytes != 0;
  return If(has, "0");
}

// Halves the micro-batch again and again.
Values MicroBatches(Query q) {
  Values all;
  for (int64_t micro = q.job.batch.micro_batch / 2; micro >= 1; micro /= 2) all.push_back(absl::StrCat(micro));
  return all;
}

// The powers of two up to all sequences that a rank has in a step, and that number. The global batch stays.
std::vector<Settings> AllMicroBatches(const Job& job) {
  const int64_t most = CeilDivide(job.batch.global_batch, job.sharding.ranks);
  std::set<int64_t, std::greater<>> numbers = {most, std::min(job.batch.micro_batch, most)};
  for (int64_t micro = 1; micro < most; micro *= 2) numbers.insert(micro);
  Values values;
  for (const int64_t micro : numbers) values.push_back(absl::StrCat(micro));
  return SettingsOf("batch.micro_batch", values);
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
    {.path = "activation_checkpointing.preset",
     .flags = kBoth,
     .settings = Presets,
     .apart_from = "activation_checkpointing.segment_blocks",
     .cheapest = Cheapest::kLeastRecomputed,
     .all = AllPresets,
     .search_order = 11},
    {.path = "activation_checkpointing.preset",
     .flags = kHasOwnSection,
     .settings = PresetsInSegments,
     .apart_from = "activation_checkpointing.segment_blocks",
     .cheapest = Cheapest::kLeastRecomputed},
    {.path = "memory.offload",
     .flags = kBoth | kFasterWithMemory,
     .values = Offload,
     .all = AllOffload,
     .search_order = 6},
    {.path = "memory.offload_state",
     .flags = kBoth | kFasterWithMemory,
     .values = OffloadMoments,
     .all = AllOffloadState,
     .search_order = 7},
    {.path = "optimizer.device", .flags = kBoth, .settings = UpdateOnHost, .caveat = "the CPU updates"},
    {.path = "sharding.strategy", .flags = kBoth, .settings = Strategies, .all = AllStrategies, .search_order = 1},
    {.path = "sharding.shard_ranks", .flags = kBoth, .values = ShardRanksOf, .all = AllShardRanks, .search_order = 2},
    {.path = "sharding.accumulation",
     .flags = kBoth,
     .values = Accumulations,
     .cheapest = Cheapest::kLeastSent,
     .all = AllAccumulations,
     .search_order = 9},
    {.path = "sharding.reshard_after_forward",
     .flags = kTogether | kFasterWithMemory,
     .values = [](Query q) { return If(Gathers(q.job) && !q.job.sharding.reshard_after_forward, "true"); },
     .all = AllResharding,
     .search_order = 3},
    {.path = "sharding.prefetch",
     .flags = kTogether | kFasterWithMemory,
     .values = [](Query q) { return If(Gathers(q.job) && q.job.sharding.prefetch > 0, "0"); },
     .all = AllPrefetch,
     .search_order = 4},
    {.path = "memory.loss_chunk_tokens",
     .flags = kTogether | kFasterWithMemory,
     .values = [](Query q) { return If(LossChunkTokens(q.job) > 128, "128"); },
     .all = AllLossChunks,
     .search_order = 10},
    {.path = "precision.master", .flags = kTogether, .values = SplitMasters},
    {.path = "optimizer.update",
     .flags = kBoth,
     .values = [](Query q) { return If(MayUpdateInBackward(q) && !ClipsAll(q) && !Stops(q), "IN_BACKWARD"); },
     .all = AllUpdateTimes,
     .search_order = 5},
    {.path = "runtime.attention_workspace_bytes", .flags = kTogether, .values = LessWorkspace},
    {.path = "checkpoint.asynchronous",
     .flags = kTogether,
     .values = [](Query q) { return If(StepOptionsFor(q.job).snapshot, "false"); }},
    {.path = "optimizer.update",
     .flags = kHasOwnSection | kChangesTraining,
     .settings = UpdateAndClipInBackward,
     .caveat = "clips and skips the gradients of each unit by themselves"},
    {.path = "optimizer.rule",
     .flags = kChangesTraining,
     .values = EightBitMoments,
     .apart_from = "optimizer.moments",
     .caveat = "moments in 8 bits, which may cost quality"},
    {.path = "optimizer.state",
     .flags = kChangesTraining,
     .settings = LeanState,
     .caveat = "lean state: bf16 with stochastic rounding, which may cost quality"},
    {.path = "precision.gradient_shards",
     .flags = kChangesTraining,
     .values = [](Query q) { return If(q.job.precision.gradient_shards != GradientShards::kBFloat16, "BF16"); },
     .caveat = "sums gradients in bf16 with stochastic rounding, which may cost quality"},
    {.path = "precision.reduce",
     .flags = kChangesTraining,
     .values =
         [](Query q) {
           const StepOptions options = StepOptionsFor(q.job);
           const bool sends = options.mesh.shard > 1 && CheckReduce(options.strategy, options.mesh).ok();
           return If(sends && options.reduce != DType::kBFloat16, "BF16");
         },
     .caveat = "gradients leave a rank in bf16 with stochastic rounding, which may cost quality"},
    {.path = "batch.micro_batch",
     .flags = kBoth,
     .values = MicroBatches,
     .range = MicroBatchRange,
     .all = AllMicroBatches,
     .search_order = 8},
    {.path = "batch.sequence_length", .range = SequenceLengthRange},
    {.path = "sharding.ranks", .flags = kHasOwnSection, .values = Ranks, .range = RanksRange},
};

}  // namespace

absl::Span<const Option> Options() { return kOptions; }

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

Settings StrategyOf(Strategy strategy, const Job& job) {
  Settings settings = {{"sharding.strategy", std::string(ToString(strategy))}};
  if (strategy == Strategy::kFullShard) return settings;
  settings.push_back({"sharding.prefetch", ""});
  settings.push_back({"sharding.reshard_after_forward", ""});
  if (StateOffload parts = job.memory.offload_state; parts.parameters) {
    parts.parameters = false;
    settings.push_back({"memory.offload_state", parts.any() ? absl::StrCat("[", ToString(parts), "]") : ""});
  }
  return settings;
}

std::vector<Settings> Option::SettingsFor(const OptionQuery& query) const {
  if (settings != nullptr) return settings(query);
  return values == nullptr ? std::vector<Settings>() : SettingsOf(path, values(query));
}

Settings Option::ThatLoad(const JobWith& job_with, Settings settings) const {
  if (apart_from.empty() || job_with(settings).ok()) return settings;
  Settings without = settings;
  without.push_back({std::string(apart_from), ""});
  return job_with(without).ok() ? without : settings;
}

}  // namespace shale
