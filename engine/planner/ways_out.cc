#include "engine/planner/ways_out.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/step/combination.h"
#include "engine/step/segments.h"

namespace shale {
namespace {

// Settings that belong together. The first is the purpose, and the others are what it needs.
using Settings = std::vector<Override>;

// A job with settings that were changed.
struct Change {
  Settings settings;
  Job job;
  std::string caveat = "";
};

class WaysOut {
 public:
  WaysOut(const Job& job, const Machine& machine, const Ops& ops, const WorkLimits& limits)
      : job_(job), machine_(machine), ops_(ops), limits_(limits) {}

  // Returns, for each field, the cheapest single change with which the job fits, if there is one. Call it once.
  std::vector<WayOut> Single() {
    AddCheckpointing();
    AddFirst(Offload());
    AddFirst(StateOffloads());
    AddFirst(UpdateOnHost());
    AddAccumulation();
    AddFirst(Strategies());
    AddFirst(ShardRanksOf());
    AddFirst(Simple());
    AddFirst(UpdateInBackward());
    AddFirst(EightBitMoments());
    AddFirst(LeanState());
    AddFirst(NarrowGradients());
    AddFirst(MicroBatches());
    AddFirst(Ranks());
    return std::move(found_);
  }

  // Returns all changes that save memory, applied together, and what the job then needs, or nothing if the job has all
  // of them already or cannot be compiled with them. Leaves offload out if the job fits without it, because the host
  // may not have the memory. Sets `fits` to whether the job fits with the changes.
  std::optional<WayOut> Everything(bool& fits) {
    fits = false;
    const Change here = EverythingWith(/*offload=*/false), away = EverythingWith(/*offload=*/true),
                 on_host = EverythingWith(/*offload=*/true, /*updates_on_host=*/true);
    std::optional<WayOut> way;
    for (const Change* all : {&here, &away, &on_host}) {
      if (all->settings.empty() || (way && all->settings == way->overrides)) continue;
      std::optional<WayOut> tried = Try(*all, fits);
      if (tried) way = std::move(tried);
      if (fits) break;
    }
    return way;
  }

  // Returns whether a limit ended the search.
  bool stopped() const { return stopped_; }

 private:
  // Returns activation checkpointing of all blocks, with the job's name patterns.
  ActivationCheckpointingConfig Everywhere(CheckpointingPreset preset, Segments segments = Segments::kGiven) const {
    return {.preset = preset, .segments = segments, .recompute = job_.activation_checkpointing.recompute};
  }

  // Returns the settings that change the job's activation checkpointing to `wanted`, which applies to all blocks.
  Settings CheckpointingSettings(const ActivationCheckpointingConfig& wanted) const {
    const ActivationCheckpointingConfig& now = job_.activation_checkpointing;
    Settings settings;
    const auto set = [&](bool applies, absl::string_view field, absl::string_view value) {
      if (applies) settings.push_back({absl::StrCat("activation_checkpointing.", field), std::string(value)});
    };
    set(true, "preset", ToString(wanted.preset));
    set(now.every_nth != 1, "every_nth", "");
    set(now.first_layers + now.last_layers > 0, "first_layers", "");
    set(now.first_layers + now.last_layers > 0, "last_layers", "");
    set(now.segment_blocks != wanted.segment_blocks, "segment_blocks",
        wanted.segment_blocks == 1 ? "" : absl::StrCat(wanted.segment_blocks));
    set(now.segments != wanted.segments, "segments", wanted.segments == Segments::kSqrt ? "SQRT" : "");
    return settings;
  }

  // Returns the activation checkpointing that needs the least memory. Returns the job's own if no other needs less.
  ActivationCheckpointingConfig LeastCheckpointing(bool offloads) const {
    const ActivationCheckpointingConfig& now = job_.activation_checkpointing;
    const ActivationCheckpointingConfig block = Everywhere(CheckpointingPreset::kBlock);
    // Offloaded boundaries take no room in the arena, but boundaries inside a segment are not offloaded.
    if (offloads || Layers(job_.model) < 2) return block;
    const ActivationCheckpointingConfig segments = Everywhere(CheckpointingPreset::kBlock, Segments::kSqrt);
    const ChosenBlocks all = {Layers(job_.model)};
    const int64_t least = BoundariesHeld(all, SqrtSegmentBlocks(all));
    ActivationCheckpointingConfig own = block;
    own.segment_blocks = now.segment_blocks;
    if (now == own && BoundariesHeld(all, own.segment_blocks) <= least) return now;
    return least < all.layers ? segments : block;
  }

  // A setting that saves memory and costs little. Switches() returns those that `job` does not have yet.
  struct Switch {
    Override setting;
    void (*set)(Job&);
  };
  static std::vector<Switch> Switches(const Job& job) {
    std::vector<Switch> switches;
    const auto add = [&](bool applies, const char* path, const char* value, void (*set)(Job&)) {
      if (applies) switches.push_back({{path, value}, set});
    };
    const bool gathers = job.sharding.strategy == Strategy::kFullShard && ShardRanks(job.sharding) > 1;
    add(gathers && !job.sharding.reshard_after_forward, "sharding.reshard_after_forward", "true",
        [](Job& job) { job.sharding.reshard_after_forward = true; });
    add(gathers && job.sharding.prefetch > 0, "sharding.prefetch", "0", [](Job& job) { job.sharding.prefetch = 0; });
    add(LossChunkTokens(job) > 128, "memory.loss_chunk_tokens", "128",
        [](Job& job) { job.memory.loss_chunk_tokens = 128; });
    add(job.precision.compute == ComputePrecision::kBFloat16 && job.precision.master == MasterWeights::kFloat32,
        "precision.master", "SPLIT", [](Job& job) { job.precision.master = MasterWeights::kSplit; });
    const bool updates_units_alone =
        job.optimizer.non_finite == NonFinite::kSkip &&
        (job.optimizer.max_gradient_norm == 0 || job.optimizer.clipping != Clipping::kGlobal);
    add(updates_units_alone && job.optimizer.update == UpdateTime::kAfterBackward, "optimizer.update", "IN_BACKWARD",
        [](Job& job) { job.optimizer.update = UpdateTime::kInBackward; });
    add(StepOptionsFor(job).snapshot, "checkpoint.asynchronous", "false",
        [](Job& job) { job.checkpoint.asynchronous = false; });
    return switches;
  }

  const Ops& OpsOf(int64_t ranks) {
    if (ranks == job_.sharding.ranks) return ops_;
    std::unique_ptr<Ops>& ops = ops_of_others_[ranks];
    if (ops == nullptr) ops = machine_.create_ops(ranks);
    return *ops;
  }

  // Returns the cheapest way to run a job, or nothing if it cannot be compiled, this number of ranks cannot run here,
  // or the search has to end.
  std::optional<Choice> Choose(const Job& job) {
    stopped_ = stopped_ || !limits_.Check().ok();
    if (stopped_) return std::nullopt;
    if (!ValidateJob(job).ok()) return std::nullopt;  // The changed field contradicts another one.
    absl::StatusOr<JobGraphs> graphs = BuildGraphs(job, limits_);
    if (!graphs.ok()) return std::nullopt;
    const absl::StatusOr<Budget> budget = BudgetOf(job, machine_.default_budget);
    // This number of ranks cannot run here.
    if (!budget.ok() || job.sharding.ranks > machine_.most_ranks) return std::nullopt;
    absl::StatusOr<Choice> choice =
        ChooseAccumulation(*graphs, StepOptionsFor(job), *budget, OpsOf(job.sharding.ranks), limits_);
    stopped_ = !limits_.Check().ok();
    if (!choice.ok()) return std::nullopt;
    return *std::move(choice);
  }

  // With `updates_on_host` all state but the weights leaves the arena for good. Otherwise `offload` offloads the
  // moments.
  Change EverythingWith(bool offload, bool updates_on_host = false) const {
    Change all{.job = job_};
    const auto apply = [&](bool applies, const Settings& settings, auto&& set) {
      if (!applies) return;
      all.settings.insert(all.settings.end(), settings.begin(), settings.end());
      set(all.job);
    };
    const ActivationCheckpointingConfig least = LeastCheckpointing(offload && job_.runtime.device != DeviceType::kCpu);
    apply(job_.activation_checkpointing != least, CheckpointingSettings(least),
          [&](Job& job) { job.activation_checkpointing = least; });
    for (const Change& change : Offload()) {
      apply(change.job.memory.offload.empty() != offload, change.settings,
            [&](Job& job) { job.memory.offload = change.job.memory.offload; });
    }
    const std::vector<Change> to_host = updates_on_host ? UpdateOnHost() : std::vector<Change>();
    for (const Change& change : to_host) {
      apply(true, change.settings, [&](Job& job) {
        job.optimizer.device = UpdateDevice::kHost;
        job.memory.offload_state = change.job.memory.offload_state;
      });
    }
    for (const Change& change : to_host.empty() ? StateOffloads() : std::vector<Change>()) {
      apply(change.job.memory.offload_state.any() == offload, change.settings,
            [&](Job& job) { job.memory.offload_state = change.job.memory.offload_state; });
    }
    apply(job_.sharding.strategy != Strategy::kFullShard, {{"sharding.strategy", "FULL_SHARD"}},
          [](Job& job) { job.sharding.strategy = Strategy::kFullShard; });
    apply(ShardRanks(job_.sharding) < job_.sharding.ranks,
          {{"sharding.shard_ranks", absl::StrCat(job_.sharding.ranks)}},
          [](Job& job) { job.sharding.shard_ranks = job.sharding.ranks; });
    apply(job_.sharding.accumulation != Accumulation::kAuto && job_.sharding.accumulation != Accumulation::kSharded,
          {{"sharding.accumulation", "SHARDED"}}, [](Job& job) { job.sharding.accumulation = Accumulation::kSharded; });
    apply(job_.batch.micro_batch > 1, {{"batch.micro_batch", "1"}}, [](Job& job) { job.batch.micro_batch = 1; });
    // Uses the switches of `all.job`, not of job_: some apply only to strategy FULL_SHARD, which was just set.
    for (const Switch& one : Switches(all.job)) apply(true, {one.setting}, one.set);
    return all;
  }

  // Compiles the job with the change, and sets `fits` to whether it fits the budget. Returns nothing if it cannot be
  // compiled.
  std::optional<WayOut> Try(const Change& change, bool& fits) {
    const std::optional<Choice> choice = Choose(change.job);
    fits = choice && choice->fits;
    if (!choice) return std::nullopt;
    return WayOutOf(change.settings, *choice, change.caveat);
  }

  static WayOut WayOutOf(const Settings& settings, const Choice& choice, const std::string& caveat = "") {
    return {.overrides = settings,
            .arena_bytes = choice.trial.arena_bytes(),
            .host_bytes = choice.trial.host_bytes(),
            .recompute_flops = SummarizeFlops(choice.trial.train.step.program).recompute,
            .caveat = caveat};
  }

  // Adds, for each field, the first change that fits. The changes of one field are adjacent in `changes`, and those
  // that cost least come first.
  void AddFirst(const std::vector<Change>& changes) {
    std::string kind;
    for (const Change& change : changes) {
      const std::string& field = change.settings.front().path;
      if (field == kind) continue;
      bool fits = false;
      const std::optional<WayOut> way = Try(change, fits);
      if (!fits) continue;
      kind = field;
      found_.push_back(*way);
    }
  }

  // Adds the preset that fits with the least recomputation. If none fits, does the same with presets in segments. Short
  // segments recompute least if a block's activations are several times its input; SQRT saves the most memory.
  void AddCheckpointing() {
    using enum CheckpointingPreset;
    std::vector<ActivationCheckpointingConfig> alone, in_segments;
    for (CheckpointingPreset preset : {kCheap, kAttention, kFeedForward, kSublayers, kBlock}) {
      alone.push_back(Everywhere(preset));
    }
    for (CheckpointingPreset preset : {kNone, kCheap, kSublayers, kBlock}) {
      for (int64_t blocks = 2; blocks <= std::min<int64_t>(3, Layers(job_.model)); ++blocks) {
        in_segments.push_back(Everywhere(preset));
        in_segments.back().segment_blocks = blocks;
      }
      if (Layers(job_.model) >= 2) in_segments.push_back(Everywhere(preset, Segments::kSqrt));
    }
    if (!AddCheapest(alone)) AddCheapest(in_segments);
  }

  // Adds the one of `kinds` that fits with the least recomputation. Returns false if none fits.
  bool AddCheapest(const std::vector<ActivationCheckpointingConfig>& kinds) {
    std::optional<WayOut> best;
    for (const ActivationCheckpointingConfig& wanted : kinds) {
      if (wanted == job_.activation_checkpointing) continue;
      Change change{CheckpointingSettings(wanted), job_};
      change.job.activation_checkpointing = wanted;
      bool fits = false;
      std::optional<WayOut> way = Try(change, fits);
      if (fits && (!best || way->recompute_flops < best->recompute_flops)) best = std::move(way);
    }
    if (best) found_.push_back(*best);
    return best.has_value();
  }

  // Returns the changes of memory.offload: to everything, and to nothing, in case the host lacks the memory.
  std::vector<Change> Offload() const {
    std::vector<Change> changes;
    const std::vector<std::string>& names = job_.memory.offload;
    if (job_.runtime.device != DeviceType::kCpu && std::find(names.begin(), names.end(), "*") == names.end()) {
      changes.push_back({{{"memory.offload", "*"}}, job_});
      changes.back().job.memory.offload.push_back("*");
    }
    if (!job_.memory.offload.empty()) {
      changes.push_back({{{"memory.offload", "[]"}}, job_});
      changes.back().job.memory.offload.clear();
    }
    return changes;
  }

  // Returns the changes of memory.offload_state: one that also offloads the moments, and one that offloads no state.
  std::vector<Change> StateOffloads() const {
    std::vector<Change> changes;
    const StateOffload& now = job_.memory.offload_state;
    if (job_.runtime.device != DeviceType::kCpu && !StepOptionsFor(job_).state_on_host().moments &&
        !MakeOptimizer(job_.optimizer).states().empty()) {
      changes.push_back({{{"memory.offload_state", "MOMENTS"}}, job_});
      changes.back().job.memory.offload_state.moments = true;
    }
    if (now.any()) {
      changes.push_back({{{"memory.offload_state", "[]"}}, job_});
      changes.back().job.memory.offload_state = {};
    }
    return changes;
  }

  // Returns the change to updates on the host, or nothing if the job has them already or cannot have them.
  std::vector<Change> UpdateOnHost() const {
    const bool can = job_.runtime.device != DeviceType::kCpu && ops_.host() != nullptr;
    if (!can || job_.optimizer.device == UpdateDevice::kHost) return {};
    Change change{{{"optimizer.device", "HOST"}}, job_, "the CPU updates"};
    change.job.optimizer.device = UpdateDevice::kHost;
    StateOffload& offload = change.job.memory.offload_state;
    if (offload.moments || offload.masters) {
      change.settings.push_back({"memory.offload_state", offload.parameters ? "[PARAMETERS]" : "[]"});
      offload = {.parameters = offload.parameters};
    }
    return {change};
  }

  void AddAccumulation() {
    if (job_.sharding.accumulation == Accumulation::kAuto) return;  // All accumulations were tried already.
    Job any = job_;
    any.sharding.accumulation = Accumulation::kAuto;
    const std::optional<Choice> choice = Choose(any);
    if (!choice || !choice->fits) return;
    found_.push_back(
        WayOutOf({{"sharding.accumulation", std::string(ToString(choice->options.accumulation))}}, *choice));
  }

  // Returns the strategies that shard more than the job's, each with an accumulation that it has.
  std::vector<Change> Strategies() const {
    std::vector<Change> changes;
    for (Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kFullShard}) {
      if (job_.sharding.ranks == 1 || strategy <= job_.sharding.strategy) continue;
      Change change{{{"sharding.strategy", std::string(ToString(strategy))}}, job_};
      change.job.sharding.strategy = strategy;
      const Accumulation accumulation = job_.sharding.accumulation;
      if (accumulation != Accumulation::kAuto && !CheckCombination(strategy, accumulation).ok()) {
        change.settings.push_back({"sharding.accumulation", "AUTO"});
        change.job.sharding.accumulation = Accumulation::kAuto;
      }
      changes.push_back(std::move(change));
    }
    return changes;
  }

  // Returns the changes of sharding.shard_ranks that shard the state over larger groups, smallest group first.
  std::vector<Change> ShardRanksOf() const {
    std::vector<Change> changes;
    const int64_t ranks = job_.sharding.ranks;
    for (int64_t shard = ShardRanks(job_.sharding) + 1; shard <= ranks; ++shard) {
      if (ranks % shard != 0) continue;
      changes.push_back({{{"sharding.shard_ranks", absl::StrCat(shard)}}, job_});
      changes.back().job.sharding.shard_ranks = shard;
    }
    return changes;
  }

  std::vector<Change> Simple() const {
    std::vector<Change> changes;
    for (const Switch& one : Switches(job_)) {
      changes.push_back({{one.setting}, job_});
      one.set(changes.back().job);
    }
    return changes;
  }

  // Returns the change to update IN_BACKWARD with all that it needs, or nothing if Simple has it or the job does it
  // already. The change alters what is computed.
  std::vector<Change> UpdateInBackward() const {
    const OptimizerConfig& now = job_.optimizer;
    const bool clips_all = now.max_gradient_norm > 0 && now.clipping == Clipping::kGlobal,
               stops = now.non_finite == NonFinite::kStop;
    if (now.update == UpdateTime::kInBackward || (!clips_all && !stops)) return {};
    Change change{
        {{"optimizer.update", "IN_BACKWARD"}}, job_, "clips and skips the gradients of each unit by themselves"};
    change.job.optimizer.update = UpdateTime::kInBackward;
    if (clips_all) {
      change.settings.push_back({"optimizer.clipping", "PER_UNIT"});
      change.job.optimizer.clipping = Clipping::kPerUnit;
    }
    if (stops) {
      change.settings.push_back({"optimizer.non_finite", "SKIP"});
      change.job.optimizer.non_finite = NonFinite::kSkip;
    }
    return {change};
  }

  // Returns the change from ADAMW to ADAMW_8BIT, which alters what is computed, or nothing if the job has another rule.
  std::vector<Change> EightBitMoments() const {
    if (job_.optimizer.kind != OptimizerKind::kAdamW || job_.optimizer.moments != Moments::kFloat32) return {};
    Change change{{{"optimizer.rule", "ADAMW_8BIT"}}, job_, "moments in 8 bits, which may cost quality"};
    change.job.optimizer.kind = OptimizerKind::kAdamW8Bit;
    return {change};
  }

  // Returns the change to the state of optimizer.state LEAN, or nothing if it would save nothing. LEAN changes what is
  // computed. The settings are the fields that LEAN presets, because it leaves alone what a job sets itself.
  std::vector<Change> LeanState() const {
    if (job_.precision.compute != ComputePrecision::kBFloat16) return {};
    Change change{{}, job_, "lean state: bf16 with stochastic rounding, which may cost quality"};
    change.job.precision.master = MasterWeights::kNone;
    SetLeanMoments(change.job.optimizer);
    if (change.job.precision != job_.precision) change.settings.push_back({"precision.master", "NONE"});
    if (change.job.optimizer != job_.optimizer) change.settings.push_back({"optimizer.moments", "BF16"});
    if (change.settings.empty()) return {};
    return {change};
  }

  // Returns the change to bf16 gradient shards, or nothing if the job has them. It changes what is computed.
  std::vector<Change> NarrowGradients() const {
    if (job_.precision.gradient_shards == GradientShards::kBFloat16) return {};
    Change change{{{"precision.gradient_shards", "BF16"}},
                  job_,
                  "sums gradients in bf16 with stochastic rounding, which may cost quality"};
    change.job.precision.gradient_shards = GradientShards::kBFloat16;
    return {change};
  }

  // Returns the changes that halve the micro-batch again and again, largest first, or nothing if even one sequence at a
  // time does not fit.
  std::vector<Change> MicroBatches() {
    std::vector<Change> changes;
    for (int64_t micro = job_.batch.micro_batch / 2; micro >= 1; micro /= 2) {
      changes.push_back({{{"batch.micro_batch", absl::StrCat(micro)}}, job_});
      changes.back().job.batch.micro_batch = micro;
    }
    bool fits = false;
    if (!changes.empty()) Try(changes.back(), fits);
    if (!fits) changes.clear();
    return changes;
  }

  // Returns the changes to other numbers of ranks. With fewer ranks, each rank has a larger share of the machine's
  // memory, unless the job sets both budgets. With more ranks, each rank may have a smaller share, but also needs less.
  // There are never more ranks than sequences.
  std::vector<Change> Ranks() const {
    std::vector<Change> changes;
    const auto add = [&](int64_t ranks) {
      changes.push_back({{{"sharding.ranks", absl::StrCat(ranks)}}, job_});
      changes.back().job.sharding.ranks = ranks;
    };
    const int64_t ranks = job_.sharding.ranks;
    if (job_.memory.budget_bytes == 0 || job_.memory.host_budget_bytes == 0) {
      for (int64_t fewer = ranks / 2; fewer >= 1; fewer /= 2) add(fewer);
    }
    if (job_.sharding.strategy != Strategy::kDdp) {
      for (int64_t more = 2 * ranks; more <= 16 * ranks && more <= job_.batch.global_batch; more *= 2) add(more);
    }
    return changes;
  }

  const Job& job_;
  const Machine& machine_;
  const Ops& ops_;                                         // For the job's number of ranks.
  std::map<int64_t, std::unique_ptr<Ops>> ops_of_others_;  // For other numbers of ranks.
  const WorkLimits& limits_;
  bool stopped_ = false;
  std::vector<WayOut> found_;
};

}  // namespace

absl::StatusOr<Budget> BudgetOf(const Job& job, const DefaultBudget& default_budget) {
  Budget budget;
  if (default_budget) {
    const absl::StatusOr<Budget> found = default_budget(job.sharding.ranks);
    if (found.ok()) {
      budget = *found;
    } else if (job.memory.budget_bytes == 0) {
      return found.status();
    }
  }
  if (job.memory.budget_bytes > 0) {
    budget.bytes = job.memory.budget_bytes;
    budget.origin.clear();
  }
  if (job.memory.host_budget_bytes > 0) {
    budget.host_bytes = job.memory.host_budget_bytes;
    budget.host_origin.clear();
  }
  return budget;
}

absl::StatusOr<Refusal> RefusalOf(const Job& job, const Choice& choice, const Budget& budget, const Machine& machine,
                                  const Ops& ops, const WorkLimits& limits) {
  Refusal refusal{.arena_bytes = choice.trial.arena_bytes(), .host_bytes = choice.trial.host_bytes(), .budget = budget};
  WaysOut ways(job, machine, ops, limits);
  refusal.ways_out = ways.Single();
  if (refusal.ways_out.empty()) {
    refusal.only_together = true;
    bool fits = false;
    std::optional<WayOut> all = ways.Everything(fits);
    if (all && fits) refusal.ways_out.push_back(*std::move(all));
    if (all && !fits) refusal.nearest = std::move(all);
  }
  refusal.search_ended_early = ways.stopped();
  if (const absl::Status status = limits.Check(); absl::IsCancelled(status)) return status;
  return refusal;
}

}  // namespace shale
