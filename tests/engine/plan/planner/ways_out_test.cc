// Tests the settings that a job which does not fit is told to change.
#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/substitute.h"
#include "engine/api/job.h"
#include "engine/plan/planner/options.h"
#include "engine/strings/printing.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "proto/machine.pb.h"
#include "tests/engine/plan/planner/measured.h"
#include "tests/engine/plan/planner/plans.h"

namespace shale {
namespace {

// Returns the plans of the job and of all settings that a refusal may name.
std::vector<JobPlan> PlansOfAllSettings(Job job) {
  job.memory.budget_bytes = int64_t{1} << 40;
  std::vector<JobPlan> plans = {Plan(job)};
  const OptionQuery query{.job = job, .has_host_ops = true};
  for (const Option& option : Options()) {
    for (const Settings& settings : option.SettingsFor(query)) {
      std::vector<std::string> overrides;
      for (const Override& setting : settings) overrides.push_back(setting.text());
      const absl::StatusOr<Job> changed = WithOverrides(job, overrides);
      if (!changed.ok()) continue;
      absl::StatusOr<JobPlan> plan = PlanJob(*changed, MachineOf());
      if (plan.ok()) plans.push_back(*std::move(plan));
    }
  }
  return plans;
}

class WaysOut : public ::testing::TestWithParam<DeviceType> {};

TEST_P(WaysOut, RefusesWithNumbersAndSettingsThatReallyFit) {
  Job job = SmallDecoderJob(false);
  job.runtime.device = GetParam();
  job.sharding.accumulation = Accumulation::kLayered;
  job.sharding.strategy = Strategy::kZero2;
  const int64_t needs = Plan(job).arena_bytes;
  job.memory.budget_bytes = needs - 1;
  const std::string message = RefusalMessage(job);
  EXPECT_TRUE(absl::StartsWith(message, absl::StrCat("needs ", FormatBytes(needs), " per rank, budget ",
                                                     FormatBytes(needs - 1), ", 1 B too little; fits with ")))
      << message;
  const std::vector<std::string> settings = SettingsIn(message);
  std::vector<std::string> fields = {"activation_checkpointing.preset=", "sharding.accumulation=",
                                     "sharding.strategy=FULL_SHARD", "batch.micro_batch=1"};
  if (job.runtime.device == DeviceType::kCuda) {
    fields.push_back("memory.offload=*");
    fields.push_back("memory.offload_state=MOMENTS");
    fields.push_back("optimizer.device=HOST");
  }
  for (const std::string& field : fields) {
    EXPECT_TRUE(
        std::any_of(settings.begin(), settings.end(), [&](const std::string& s) { return absl::StartsWith(s, field); }))
        << field << " in " << message;
  }
  for (const std::string& setting : settings) {
    const absl::StatusOr<Job> changed = ParseJobText(ResolvedJobText(job), "job", {setting});
    ASSERT_TRUE(changed.ok()) << setting << ": " << changed.status();
    const JobPlan plan = Plan(*changed);
    EXPECT_LE(plan.arena_bytes, needs - 1) << setting;
    const std::string price = absl::StrCat(setting, " (", CostText(plan.chosen().cost));
    const char* const end = setting == "optimizer.device=HOST" ? "; the CPU updates)" : ")";
    EXPECT_TRUE(absl::StrContains(message, price + end) || absl::StrContains(message, price + ";"))
        << setting << " needs " << FormatBytes(plan.arena_bytes) << ": " << message;
  }
}

// Where the machine's speed is known, the same settings are named with their time against the job's. The fastest comes
// first, unless too little of the steps was measured: the times then are called estimates.
TEST_P(WaysOut, WithSecondsTheFastestComesFirst) {
  Job job = SmallDecoderJob(false);
  job.runtime.device = GetParam();
  job.sharding.accumulation = Accumulation::kLayered;
  job.sharding.strategy = Strategy::kZero2;
  job.memory.budget_bytes = Plan(job).arena_bytes - 1;
  Refusal untimed;
  EXPECT_EQ(PlanJob(job, MachineOf(), {}, &untimed).status().code(), absl::StatusCode::kResourceExhausted);
  proto::MachineProfile profile = MeasuredFor(PlansOfAllSettings(job));
  profile.set_device(job.runtime.device == DeviceType::kCpu ? "CPU" : "CUDA");
  for (const bool measured : {true, false}) {
    SCOPED_TRACE(measured);
    if (!measured) profile.clear_works();
    Refusal timed;
    const absl::StatusOr<JobPlan> refused = PlanJob(job, MachineWith(profile), {}, &timed);
    ASSERT_EQ(timed.ways_out.size(), untimed.ways_out.size());
    for (const Variant& way : timed.ways_out) {
      EXPECT_EQ(way.cost.covered(), measured) << SettingsText(way.overrides, " ") << " " << way.cost.known;
      EXPECT_TRUE(absl::StrContains(refused.status().message(),
                                    absl::StrCat(CostText(way.cost), ", ", TimesText(way.cost, timed.cost))))
          << refused.status();
    }
    EXPECT_EQ(absl::StrContains(refused.status().message(), "estimated"), !measured) << refused.status();
    // Estimates are said, and decide nothing.
    const auto faster = [](const Variant& a, const Variant& b) { return a.cost.seconds < b.cost.seconds; };
    if (measured) {
      EXPECT_TRUE(std::is_sorted(timed.ways_out.begin(), timed.ways_out.end(), faster));
    }
    for (size_t i = 0; !measured && i < timed.ways_out.size(); ++i) {
      EXPECT_EQ(timed.ways_out[i].overrides, untimed.ways_out[i].overrides);
    }
  }
}

TEST_P(WaysOut, LeanStateIsProposedWithItsPrice) {
  Job job = SmallDecoderJob(false);
  job.runtime.device = GetParam();
  job.precision.compute = ComputePrecision::kBFloat16;
  job.sharding.accumulation = Accumulation::kSharded;
  for (MasterWeights master : {MasterWeights::kFloat32, MasterWeights::kSplit}) {
    job.precision.master = master;
    Job lean = job;
    lean.precision.master = MasterWeights::kNone;
    SetLeanMoments(lean.optimizer);
    job.memory.budget_bytes = Plan(lean).arena_bytes;
    const std::string message = RefusalMessage(job);
    EXPECT_TRUE(absl::StrContains(
        message,
        absl::StrCat("precision.master=NONE with optimizer.moments=BF16 (", FormatBytes(job.memory.budget_bytes),
                     "; lean state: bf16 with stochastic rounding, which may cost quality)")))
        << message;
    lean.memory.budget_bytes = 1;
    EXPECT_FALSE(absl::StrContains(RefusalMessage(lean), "lean state"));
    job.memory.budget_bytes = int64_t{1} << 40;
  }
}

TEST_P(WaysOut, NarrowGradientsAreProposedWithTheirPrice) {
  Job job = SmallDecoderJob(false);
  job.runtime.device = GetParam();
  job.sharding.accumulation = Accumulation::kSharded;
  std::get<DecoderConfig>(job.model).layers = 16;
  job.activation_checkpointing.preset = CheckpointingPreset::kBlock;  // Gradients outweigh activations.
  Job narrow = job;
  narrow.precision.gradient_shards = GradientShards::kBFloat16;
  job.memory.budget_bytes = Plan(narrow).arena_bytes;
  const std::string message = RefusalMessage(job);
  EXPECT_TRUE(absl::StrContains(
      message, absl::StrCat("precision.gradient_shards=BF16 (", FormatBytes(job.memory.budget_bytes),
                            "; sums gradients in bf16 with stochastic rounding, which may cost quality)")))
      << message;
  narrow.memory.budget_bytes = 1;
  EXPECT_FALSE(absl::StrContains(RefusalMessage(narrow), "precision.gradient_shards"));
}

TEST_P(WaysOut, OtherUpdatesAreProposedWithTheirPrice) {
  Job job = SmallDecoderJob(false);
  job.runtime.device = GetParam();
  job.sharding.accumulation = Accumulation::kLayered;
  std::get<DecoderConfig>(job.model).layers = 16;
  std::get<DecoderConfig>(job.model).hidden = 1 << 12;
  job.activation_checkpointing.preset = CheckpointingPreset::kBlock;  // Gradients outweigh activations.
  Job in_backward = job, eight_bit = job;
  in_backward.optimizer.update = UpdateTime::kInBackward;
  in_backward.optimizer.clipping = Clipping::kPerUnit;
  in_backward.optimizer.non_finite = NonFinite::kSkip;
  eight_bit.optimizer.kind = OptimizerKind::kAdamW8Bit;
  const std::pair<Job, std::string> ways[] = {
      {in_backward,
       "optimizer.update=IN_BACKWARD with optimizer.clipping=PER_UNIT and optimizer.non_finite=SKIP ($0; "
       "clips and skips the gradients of each unit by themselves)"},
      {eight_bit, "optimizer.rule=ADAMW_8BIT ($0; moments in 8 bits, which may cost quality)"}};
  for (const auto& [changed, wanted] : ways) {
    job.memory.budget_bytes = Plan(changed).arena_bytes;
    const std::string message = RefusalMessage(job);
    EXPECT_TRUE(absl::StrContains(message, absl::Substitute(wanted, FormatBytes(job.memory.budget_bytes)))) << message;
    Job refused = changed;
    refused.memory.budget_bytes = 1;
    EXPECT_FALSE(absl::StrContains(RefusalMessage(refused), wanted.substr(0, wanted.find(' ')))) << "it is so already";
    job.memory.budget_bytes = int64_t{1} << 40;
  }
}

TEST_P(WaysOut, NamesSeveralSettingsTogetherWhenNoneSuffices) {
  Job job = SmallDecoderJob(false);
  job.runtime.device = GetParam();
  job.sharding.strategy = Strategy::kDdp;
  job.sharding.accumulation = Accumulation::kNoSync;
  job.sharding.ranks = 2;
  // The smallest budget that fits is what all changes together need.
  job.memory.budget_bytes = 1;
  const std::string hopeless = RefusalMessage(job);
  EXPECT_TRUE(absl::StrContains(hopeless, "it is still too large with activation_checkpointing.preset=BLOCK, "))
      << hopeless;
  Job all = job;
  all.memory.budget_bytes = int64_t{1} << 40;
  const absl::StatusOr<Job> changed = ParseJobText(ResolvedJobText(all), "job", SettingsIn(hopeless));
  ASSERT_TRUE(changed.ok()) << changed.status();
  job.memory.budget_bytes = Plan(*changed).arena_bytes;
  const std::string message = RefusalMessage(job);
  EXPECT_TRUE(absl::StrContains(message, "no single change suffices, but these together do: ")) << message;
  EXPECT_TRUE(absl::StrContains(message, absl::StrCat("(", FormatBytes(job.memory.budget_bytes)))) << message;
}

// The printed settings give the plan that was computed, whatever else the job had set.
TEST_P(WaysOut, EverythingTogetherTakesBackWhatStandsInItsWay) {
  Job every_other = SmallDecoderJob(false), some = every_other;
  every_other.activation_checkpointing.preset = CheckpointingPreset::kBlock;
  every_other.activation_checkpointing.every_nth = 2;
  every_other.sharding.strategy = Strategy::kZero1;
  some.activation_checkpointing.preset = CheckpointingPreset::kCheap;
  some.activation_checkpointing.last_layers = 1;
  some.checkpoint.every_steps = 1;
  some.checkpoint.asynchronous = true;
  for (Job job : {every_other, some}) {
    job.runtime.device = GetParam();
    job.sharding.ranks = 2;
    job.memory.budget_bytes = 1;
    const std::string hopeless = RefusalMessage(job);
    std::vector<std::string> settings = SettingsIn(hopeless);
    for (absl::string_view setting : {"activation_checkpointing.preset=BLOCK", "sharding.prefetch=0"}) {
      EXPECT_NE(std::find(settings.begin(), settings.end(), setting), settings.end()) << setting << ": " << hopeless;
    }
    settings.push_back("memory.budget_bytes=1099511627776");
    const absl::StatusOr<Job> changed = ParseJobText(ResolvedJobText(job), "job", settings);
    ASSERT_TRUE(changed.ok()) << changed.status() << " " << hopeless;
    const JobPlan all = Plan(*changed);
    EXPECT_TRUE(std::any_of(all.candidates.begin(), all.candidates.end(), [&](const Variant& c) {
      return absl::StrContains(hopeless, absl::StrCat("(", FormatBytes(c.cost.arena_bytes)));
    })) << hopeless;
    EXPECT_EQ(all.options.activations.every_nth, 1);
    EXPECT_EQ(all.options.activations.last_layers, 0);
    EXPECT_FALSE(all.options.snapshot);
  }
}

Job DeepJob(Segments segments = Segments::kGiven) {
  Job job = SmallDecoderJob(false);
  std::get<DecoderConfig>(job.model).layers = 16;
  job.sharding.accumulation = Accumulation::kSharded;
  job.activation_checkpointing = {.preset = CheckpointingPreset::kBlock, .segments = segments};
  return job;
}

TEST_P(WaysOut, SegmentsAreProposedWherePresetsDoNotSuffice) {
  Job job = DeepJob();
  job.runtime.device = GetParam();
  Job segments = DeepJob(Segments::kSqrt);
  const int64_t enough = Plan(segments).arena_bytes;
  ASSERT_LT(enough, Plan(job).arena_bytes);
  for (CheckpointingPreset preset : {CheckpointingPreset::kNone, CheckpointingPreset::kBlock}) {
    job.activation_checkpointing.preset = preset;
    job.memory.budget_bytes = enough;
    const std::string message = RefusalMessage(job);
    const std::vector<std::string> settings = SettingsIn(message);
    ASSERT_GE(settings.size(), 2) << message;
    EXPECT_TRUE(absl::StartsWith(settings[0], "activation_checkpointing.preset=")) << message;
    EXPECT_TRUE(absl::StartsWith(settings[1], "activation_checkpointing.segment")) << message;
    const absl::StatusOr<Job> changed = ParseJobText(ResolvedJobText(job), "job", {settings[0], settings[1]});
    ASSERT_TRUE(changed.ok()) << changed.status();
    EXPECT_LE(Plan(*changed).arena_bytes, enough) << message;
  }
  // A preset that fits without segments recomputes less.
  job.activation_checkpointing.preset = CheckpointingPreset::kNone;
  job.memory.budget_bytes = Plan(DeepJob()).arena_bytes;
  EXPECT_FALSE(absl::StrContains(RefusalMessage(job), "activation_checkpointing.segment"));
}

TEST_P(WaysOut, EverythingTogetherHasTheFewestBoundaries) {
  const auto hopeless = [&](const ActivationCheckpointingConfig& config) {
    Job job = DeepJob();
    job.runtime.device = GetParam();
    job.sharding.ranks = 1;
    job.memory.budget_bytes = 1;
    job.activation_checkpointing = config;
    return RefusalMessage(job);
  };
  const CheckpointingPreset block = CheckpointingPreset::kBlock;
  const std::string sqrt = "activation_checkpointing.preset=BLOCK, activation_checkpointing.segments=SQRT, ";
  const std::string shorter =
      "activation_checkpointing.preset=BLOCK, activation_checkpointing.segment_blocks=, "
      "activation_checkpointing.segments=SQRT, ";
  if (GetParam() == DeviceType::kCpu) {
    EXPECT_TRUE(absl::StrContains(hopeless({.preset = block}), sqrt)) << hopeless({.preset = block});
    EXPECT_TRUE(absl::StrContains(hopeless({.preset = block, .segment_blocks = 2}), shorter));
    // 16 blocks hold the fewest boundaries in segments of 4.
    EXPECT_FALSE(absl::StrContains(hopeless({.preset = block, .segments = Segments::kSqrt}), "checkpointing"));
    EXPECT_FALSE(absl::StrContains(hopeless({.preset = block, .segment_blocks = 4}), "checkpointing"));
  } else {
    // With everything offloaded, segments would only add their inner boundaries to the arena.
    EXPECT_FALSE(absl::StrContains(hopeless({.preset = block}), "segments"));
    EXPECT_TRUE(absl::StrContains(hopeless({.preset = block, .segments = Segments::kSqrt}),
                                  "activation_checkpointing.segments=, "));
  }
}

TEST(WaysOutOfHybridSharding, OffersTheSmallestLargerGroupThatFits) {
  Job job = SmallDecoderJob(false);
  job.sharding.ranks = 8;
  job.sharding.accumulation = Accumulation::kSharded;
  job.sharding.shard_ranks = 4;
  const int64_t four = Plan(job).arena_bytes;
  job.sharding.shard_ranks = 1;
  job.memory.budget_bytes = four;
  const std::string message = RefusalMessage(job);
  EXPECT_TRUE(absl::StrContains(message, absl::StrCat("sharding.shard_ranks=4 (", FormatBytes(four), ")"))) << message;
  job.sharding.shard_ranks = 4;
  const JobPlan plan = Plan(job);
  EXPECT_EQ(plan.options.mesh, (Mesh{.replicate = 2, .shard = 4}));
  EXPECT_EQ(plan.options.micro_batches, AccumulationSteps(job.batch, 8));
  // All ranks in one group is FULL_SHARD as without shard_ranks.
  job.memory.budget_bytes = 0;
  job.sharding.shard_ranks = 8;
  const JobPlan all = Plan(job);
  job.sharding.shard_ranks = 0;
  EXPECT_EQ(DumpProgram(all.train.step.program), DumpProgram(Plan(job).train.step.program));
}

TEST(WaysOutOfGraphs, OffersNothingThatTheJobRulesOut) {
  Job job = SmallDecoderJob(false);
  job.runtime.device = DeviceType::kCuda;
  job.runtime.graphs = true;
  job.sharding.ranks = 1;
  job.memory.budget_bytes = Plan(job).arena_bytes - 1;
  const std::string message = RefusalMessage(job);
  EXPECT_FALSE(absl::StrContains(message, "sharding.ranks=")) << message;
}

// Fields that jobs give, with values that others default to among them: a setting may not go with a field that is
// given.
const std::vector<std::vector<std::string>>& GivenFields() {
  static const auto& all = *new std::vector<std::vector<std::string>>{
      {},
      {"optimizer.moments=FP32"},
      {"optimizer.moments=BF16", "precision.compute=BF16", "precision.master=MASTER_FP32"},
      {"optimizer.rule=LION", "optimizer.moments=FP32"},
      {"optimizer.rule=SGD", "optimizer.momentum=0.9"},
      {"optimizer.rule=ADAFACTOR"},
      {"optimizer.rule=MUON"},
      {"optimizer.rule=ADAMW_8BIT"},
      {"optimizer.state=FULL", "precision.compute=BF16"},
      {"optimizer.state=LEAN", "precision.compute=BF16"},
      {"precision.master=SPLIT", "precision.compute=BF16"},
      {"precision.compute=FP16", "optimizer.non_finite=SKIP"},
      {"precision.gradient_shards=FP32", "precision.reduce=FP32"},
      {"precision.gradient_shards=BF16", "precision.compute=BF16"},
      {"precision.compute=BF16", "precision.matmuls=FP8"},
      {"activation_checkpointing.segment_blocks=1"},
      {"activation_checkpointing.segment_blocks=2", "activation_checkpointing.preset=BLOCK"},
      {"activation_checkpointing.segments=SQRT"},
      {"activation_checkpointing.every_nth=1", "activation_checkpointing.preset=CHEAP"},
      {"activation_checkpointing.every_nth=2", "activation_checkpointing.preset=BLOCK"},
      {"activation_checkpointing.first_layers=1", "activation_checkpointing.preset=FFN"},
      {"activation_checkpointing.last_layers=2", "activation_checkpointing.preset=SUBLAYERS"},
      {"sharding.strategy=DDP", "sharding.accumulation=AUTO"},
      {"sharding.strategy=DDP", "sharding.accumulation=NO_SYNC"},
      {"sharding.strategy=ZERO1", "sharding.accumulation=NO_SYNC", "sharding.shard_ranks=2"},
      {"sharding.strategy=ZERO2", "sharding.accumulation=SHARDED", "sharding.shard_ranks=4"},
      {"sharding.prefetch=1", "sharding.reshard_after_forward=true", "sharding.accumulation=LAYERED"},
      {"sharding.prefetch=2", "sharding.reshard_after_forward=false", "sharding.shard_ranks=1"},
      {"optimizer.update=AFTER_BACKWARD", "optimizer.clipping=GLOBAL", "optimizer.non_finite=STOP"},
      {"optimizer.update=IN_BACKWARD", "optimizer.max_gradient_norm=0", "optimizer.non_finite=SKIP"},
      {"optimizer.clipping=PER_UNIT", "optimizer.max_gradient_norm=1", "optimizer.non_finite=SKIP"},
      {"optimizer.groups={parameters: \"*norm*\" weight_decay: 0}", "optimizer.moments=FP32"},
      {"optimizer.groups={parameters: \"head*\" rule: LION learning_rate_factor: 0.3}", "optimizer.moments=FP32"},
      {"optimizer.groups={parameters: \"head*\" max_gradient_norm: 1}"},
      {"optimizer.train_only=blocks.*", "optimizer.frozen_weights=BF16"},
      {"memory.loss_chunk_tokens=64", "checkpoint.every_steps=1", "checkpoint.asynchronous=true"},
      {"runtime.device=CUDA", "optimizer.moments=FP32", "activation_checkpointing.segment_blocks=1"},
      {"runtime.device=CUDA", "memory.offload=blocks.0.*", "memory.offload_state=MOMENTS"},
      {"runtime.device=CUDA", "optimizer.device=HOST", "memory.offload_state=PARAMETERS"},
      {"runtime.device=CUDA", "optimizer.device=SAME", "memory.offload_state=[MASTERS]", "precision.compute=BF16"},
      {"runtime.device=CUDA", "runtime.attention_workspace_bytes=1GiB", "precision.compute=BF16"},
      {"runtime.device=CUDA", "runtime.cudnn_attention=false", "runtime.ranks_per_device=2"},
      {"runtime.device=CUDA", "runtime.graphs=true", "sharding.ranks=1", "activation_checkpointing.segments=SQRT"}};
  return all;
}

constexpr char kGiven[] = R"(model { decoder { width: 32 layers: 4 heads: 2 vocabulary: 64 hidden: 64 } }
data { path: "/text" } batch { global_batch: 32 micro_batch: 2 sequence_length: 16 } lr_schedule { steps: 10 }
sharding { ranks: 8 accumulation: SHARDED })";

// What a refusal names loads, fits, and needs as many bytes as it says. optimizer.rule=ADAMW_8BIT was once named to a
// job that gives optimizer.moments, and did not load with it.
TEST(WaysOutOfGivenFields, LoadAndFitWithTheBytesThatTheyName) {
  std::set<std::string> named;
  for (const std::vector<std::string>& given : GivenFields()) {
    SCOPED_TRACE(absl::StrJoin(given, " "));
    const JobWith job_with = [&](const std::vector<Override>& settings) {
      std::vector<std::string> all = given;
      for (const Override& setting : settings) all.push_back(setting.text());
      return ParseJobText(kGiven, "job", all);
    };
    absl::StatusOr<Job> job = job_with({});
    ASSERT_TRUE(job.ok()) << job.status();
    const int64_t needs = Plan(*job).arena_bytes;
    for (const int64_t budget : {needs - 1, int64_t{1}}) {
      job->memory.budget_bytes = budget;
      Refusal refusal;
      const JobWith with_budget = [&](const std::vector<Override>& settings) -> absl::StatusOr<Job> {
        SHALE_ASSIGN_OR_RETURN(Job with, job_with(settings));
        with.memory.budget_bytes = budget;
        return with;
      };
      const absl::Status status = PlanJob(*job, MachineOf(), {}, &refusal, with_budget).status();
      if (status.ok()) continue;  // AUTO has another accumulation, which fits.
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      for (const Variant& way : refusal.ways_out) {
        const absl::StatusOr<Job> changed = with_budget(way.overrides);
        ASSERT_TRUE(changed.ok()) << SettingsText(way.overrides, " ") << ": " << changed.status();
        EXPECT_EQ(Plan(*changed).chosen().cost.arena_bytes, way.cost.arena_bytes) << SettingsText(way.overrides, " ");
        for (const Override& setting : way.overrides) named.insert(setting.path);
      }
      if (!refusal.nearest) continue;
      EXPECT_TRUE(with_budget(refusal.nearest->overrides).ok());
      for (const Override& setting : refusal.nearest->overrides) named.insert(setting.path);
    }
  }
  EXPECT_GE(named.size(), 16);
  for (const char* left_out : {"optimizer.moments", "activation_checkpointing.segment_blocks"}) {
    EXPECT_TRUE(named.contains(left_out)) << left_out << " in " << absl::StrJoin(named, " ");
  }
}

// Without the job as it was written, a setting is one of the job as it was resolved, which gives no moments.
TEST(WaysOutOfGivenFields, LeaveOutOnlyWhatIsGiven) {
  for (const char* given : {"optimizer.moments=FP32", "name=small"}) {
    const JobWith job_with = [&](const std::vector<Override>& settings) {
      std::vector<std::string> all = {given};
      for (const Override& setting : settings) all.push_back(setting.text());
      return ParseJobText(kGiven, "job", all);
    };
    const Job job = job_with({}).value();
    const auto rule = std::find_if(Options().begin(), Options().end(),
                                   [](const Option& option) { return option.path == "optimizer.rule"; });
    const Settings settings = rule->ThatLoad(job_with, rule->SettingsFor({.job = job}).front());
    EXPECT_EQ(SettingsText(settings, " "), absl::StartsWith(given, "name")
                                               ? "optimizer.rule=ADAMW_8BIT"
                                               : "optimizer.rule=ADAMW_8BIT optimizer.moments=");
  }
}

INSTANTIATE_TEST_SUITE_P(Budget, WaysOut, ::testing::Values(DeviceType::kCpu, DeviceType::kCuda),
                         [](const auto& info) { return info.param == DeviceType::kCpu ? "Cpu" : "Cuda"; });

}  // namespace
}  // namespace shale
