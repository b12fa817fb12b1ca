#include "engine/planner/job_plan.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/config/parse.h"
#include "engine/config/print.h"
#include "engine/planner/trial.h"
#include "engine/text/numbers.h"
#include "gtest/gtest.h"
#include "tests/engine/planner/planner_jobs.h"

namespace shale {
namespace {

JobPlan Plan(const Job& job) {
  absl::StatusOr<JobPlan> plan = PlanJob(job, MachineOf());
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *std::move(plan);
}

std::string Refusal(const Job& job) {
  const absl::StatusOr<JobPlan> plan = PlanJob(job, MachineOf());
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kResourceExhausted) << plan.status();
  return std::string(plan.status().message());
}

TEST(AutoAccumulation, TakesTheLeastCommunicationThatFits) {
  Job job = SmallDecoderJob(false);
  const JobPlan unlimited = Plan(job);
  ASSERT_EQ(unlimited.candidates.size(), 3);
  // SHARDED has 2K gathers and K reductions, NO_SYNC 2K and 1, LAYERED 2 and 1.
  EXPECT_EQ(unlimited.options.accumulation, Accumulation::kLayered);
  std::vector<int64_t> peaks;
  for (const AccumulationCandidate& c : unlimited.candidates) {
    ASSERT_TRUE(c.status.ok()) << c.status;
    peaks.push_back(c.peak_bytes);
  }
  for (int64_t budget : peaks) {
    const AccumulationCandidate* best = nullptr;
    for (const AccumulationCandidate& c : unlimited.candidates) {
      if (c.peak_bytes > budget) continue;
      if (best == nullptr || c.communicated_bytes < best->communicated_bytes) best = &c;
    }
    job.memory.budget_bytes = budget;
    const JobPlan plan = Plan(job);
    EXPECT_EQ(plan.options.accumulation, best->accumulation) << budget;
    EXPECT_EQ(plan.arena_bytes, best->peak_bytes);
    EXPECT_LE(plan.arena_bytes, budget);
  }
  // The accumulation that takes the least memory communicates most: it accumulates nothing unsharded and keeps nothing
  // for several micro-batches.
  job.memory.budget_bytes = *std::min_element(peaks.begin(), peaks.end());
  EXPECT_EQ(Plan(job).options.accumulation, Accumulation::kSharded);
}

TEST(AutoAccumulation, SaysWhyWithTheNumbersOfTheOthers) {
  Job job = SmallDecoderJob(false);
  const JobPlan plan = Plan(job);
  for (const AccumulationCandidate& c : plan.candidates) {
    EXPECT_TRUE(absl::StrContains(plan.accumulation_reason, FormatBytes(c.peak_bytes))) << plan.accumulation_reason;
    EXPECT_TRUE(absl::StrContains(plan.accumulation_reason, FormatBytes(c.communicated_bytes)))
        << plan.accumulation_reason;
  }
  job.sharding.accumulation = Accumulation::kSharded;
  EXPECT_EQ(Plan(job).accumulation_reason, "the job names it");
}

TEST(AutoAccumulation, WithEqualCommunicationTakesTheLeastMemory) {
  // One micro-batch: every accumulation gathers twice and reduces once.
  Job job = SmallDecoderJob(false);
  job.batch.global_batch = 10;
  const JobPlan plan = Plan(job);
  ASSERT_EQ(plan.options.micro_batches, 1);
  for (const AccumulationCandidate& c : plan.candidates) {
    EXPECT_EQ(c.communicated_bytes, plan.candidates[0].communicated_bytes);
    EXPECT_LE(plan.arena_bytes, c.peak_bytes);
  }
}

TEST(AutoAccumulation, PassesOverWhatTheStrategyDoesNotHave) {
  Job job = SmallDecoderJob(false);
  job.sharding.strategy = Strategy::kZero1;
  const JobPlan plan = Plan(job);
  EXPECT_EQ(plan.candidates[0].accumulation, Accumulation::kSharded);
  EXPECT_FALSE(plan.candidates[0].status.ok());
  EXPECT_NE(plan.options.accumulation, Accumulation::kSharded);
  job.sharding.accumulation = Accumulation::kSharded;
  EXPECT_EQ(PlanJob(job, MachineOf()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(AutoAccumulation, OneRankTakesTheLeastMemory) {
  Job job = SmallDecoderJob(false);
  job.sharding.ranks = 1;
  const JobPlan plan = Plan(job);
  EXPECT_EQ(plan.options.accumulation, Accumulation::kSharded);
  for (const AccumulationCandidate& c : plan.candidates) EXPECT_EQ(c.communicated_bytes, 0);
}

TEST(Plan, LayeredPacksWeightsOnceOnlyWhereThereIsRoom) {
  Job job = SmallDecoderJob(false);
  job.sharding.accumulation = Accumulation::kLayered;
  const int64_t without = Plan(job).arena_bytes;
  const absl::StatusOr<JobPlan> roomy = PlanJob(job, MachineOf<PackingOps>());
  ASSERT_TRUE(roomy.ok()) << roomy.status();
  EXPECT_GT(roomy->arena_bytes, without);
  EXPECT_TRUE(roomy->options.packs_once);
  EXPECT_TRUE(PacksOnce(roomy->train.step.program));
  for (const int64_t budget : {without, roomy->arena_bytes - 1, roomy->arena_bytes}) {
    job.memory.budget_bytes = budget;
    const absl::StatusOr<JobPlan> plan = PlanJob(job, MachineOf<PackingOps>());
    ASSERT_TRUE(plan.ok()) << plan.status();
    const bool fits = budget == roomy->arena_bytes;
    EXPECT_EQ(plan->arena_bytes, fits ? roomy->arena_bytes : without);
    EXPECT_EQ(PacksOnce(plan->train.step.program), fits);
  }
  job.memory.budget_bytes = without - 1;
  EXPECT_EQ(PlanJob(job, MachineOf<PackingOps>()).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST(Plan, EvaluationUsesTheSamePersistentBytes) {
  for (Strategy strategy : {Strategy::kDdp, Strategy::kZero1, Strategy::kZero2, Strategy::kFullShard}) {
    Job job = SmallDecoderJob(true);
    job.sharding.strategy = strategy;
    const JobPlan plan = Plan(job);
    EXPECT_EQ(plan.arena_bytes, std::max(plan.train.memory.peak_bytes, plan.evaluate.memory.peak_bytes));
    const absl::StatusOr<PlannedProgram> logits = PlanProgram(job, plan.options, GraphMode::kLogits, ScratchOnlyOps());
    ASSERT_TRUE(logits.ok()) << logits.status();
    for (const PlannedProgram* other : {&plan.evaluate, &*logits}) {
      EXPECT_EQ(other->memory.persistent_bytes, plan.train.memory.persistent_bytes);
      for (size_t b = 0; b < plan.train.step.program.buffers.size(); ++b) {
        const Buffer& buffer = plan.train.step.program.buffers[b];
        if (!buffer.persistent) break;
        EXPECT_EQ(other->step.program.buffers[b].name, buffer.name);
        EXPECT_EQ(other->step.program.buffers[b].size_bytes(), buffer.size_bytes());
        EXPECT_EQ(other->memory.addresses[b], plan.train.memory.addresses[b]);
      }
    }
  }
}

TEST(Plan, TakesTheSameMemoryForEveryNumberOfMicroBatchesAboveOneAndLessForOne) {
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync}) {
    Job job = SmallDecoderJob(false);
    job.sharding.accumulation = accumulation;
    job.batch.global_batch = 10;
    const int64_t one = Plan(job).arena_bytes;
    job.batch.global_batch = 20;
    const int64_t two = Plan(job).arena_bytes;
    EXPECT_LT(one, two) << ToString(accumulation);
    for (int64_t k : {3, 1000}) {
      job.batch.global_batch = 10 * k;
      EXPECT_EQ(Plan(job).arena_bytes, two) << ToString(accumulation) << " K = " << k;
    }
  }
}

// Returns the settings after "fits with", in the form that --set takes.
std::vector<std::string> SettingsIn(const std::string& message) {
  std::vector<std::string> settings;
  for (absl::string_view word : absl::StrSplit(message, absl::ByAnyChar(" ,;"), absl::SkipEmpty())) {
    if (absl::StrContains(word, '=')) settings.emplace_back(word);
  }
  return settings;
}

class WaysOut : public ::testing::TestWithParam<DeviceType> {};

TEST_P(WaysOut, RefusesWithNumbersAndSettingsThatReallyFit) {
  Job job = SmallDecoderJob(false);
  job.runtime.device = GetParam();
  job.sharding.accumulation = Accumulation::kLayered;
  job.sharding.strategy = Strategy::kZero2;
  const int64_t needs = Plan(job).arena_bytes;
  job.memory.budget_bytes = needs - 1;
  const std::string message = Refusal(job);
  EXPECT_TRUE(absl::StartsWith(message, absl::StrCat("needs ", FormatBytes(needs), " per rank, budget ",
                                                     FormatBytes(needs - 1), ", 1 B too little; fits with ")))
      << message;
  const std::vector<std::string> settings = SettingsIn(message);
  std::vector<std::string> fields = {"activation_checkpointing.preset=", "sharding.accumulation=",
                                     "sharding.strategy=FULL_SHARD", "batch.micro_batch=1"};
  if (job.runtime.device == DeviceType::kCuda) fields.push_back("memory.offload=*");
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
    const std::string host = plan.train.memory.host_bytes == 0
                                 ? ""
                                 : absl::StrCat(", and ", FormatBytes(plan.train.memory.host_bytes), " of host memory");
    EXPECT_TRUE(absl::StrContains(message, absl::StrCat(setting, " (", FormatBytes(plan.arena_bytes), host, ")")))
        << setting << " needs " << FormatBytes(plan.arena_bytes) << ": " << message;
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
  const std::string hopeless = Refusal(job);
  EXPECT_TRUE(absl::StrContains(hopeless, "it is still too large with activation_checkpointing.preset=BLOCK, "))
      << hopeless;
  Job all = job;
  all.memory.budget_bytes = int64_t{1} << 40;
  const absl::StatusOr<Job> changed = ParseJobText(ResolvedJobText(all), "job", SettingsIn(hopeless));
  ASSERT_TRUE(changed.ok()) << changed.status();
  job.memory.budget_bytes = Plan(*changed).arena_bytes;
  const std::string message = Refusal(job);
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
    const std::string hopeless = Refusal(job);
    std::vector<std::string> settings = SettingsIn(hopeless);
    for (absl::string_view setting : {"activation_checkpointing.preset=BLOCK", "sharding.prefetch=0"}) {
      EXPECT_NE(std::find(settings.begin(), settings.end(), setting), settings.end()) << setting << ": " << hopeless;
    }
    settings.push_back("memory.budget_bytes=1099511627776");
    const absl::StatusOr<Job> changed = ParseJobText(ResolvedJobText(job), "job", settings);
    ASSERT_TRUE(changed.ok()) << changed.status() << " " << hopeless;
    const JobPlan all = Plan(*changed);
    EXPECT_TRUE(std::any_of(all.candidates.begin(), all.candidates.end(), [&](const AccumulationCandidate& c) {
      return absl::StrContains(hopeless, absl::StrCat("(", FormatBytes(c.peak_bytes)));
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
    const std::string message = Refusal(job);
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
  EXPECT_FALSE(absl::StrContains(Refusal(job), "activation_checkpointing.segment"));
}

TEST_P(WaysOut, EverythingTogetherHasTheFewestBoundaries) {
  const auto hopeless = [&](const ActivationCheckpointingConfig& config) {
    Job job = DeepJob();
    job.runtime.device = GetParam();
    job.sharding.ranks = 1;
    job.memory.budget_bytes = 1;
    job.activation_checkpointing = config;
    return Refusal(job);
  };
  const CheckpointingPreset block = CheckpointingPreset::kBlock;
  const std::string sqrt = "activation_checkpointing.preset=BLOCK with activation_checkpointing.segments=SQRT, ";
  const std::string shorter =
      "activation_checkpointing.preset=BLOCK with activation_checkpointing.segment_blocks= and "
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

TEST(Plan, SegmentsOfADeepModelHoldTwiceTheSquareRootOfItsBoundaries) {
  const auto boundaries = [](const std::string& setting) {
    const absl::StatusOr<Job> job = LoadJob("tools/jobs/llama3_405b.textproto", {setting});
    EXPECT_TRUE(job.ok()) << job.status();
    const int64_t boundary = job->batch.sequence_length * std::get<DecoderConfig>(job->model).width * 2;
    return Plan(*job).train.memory.bytes_at_peak[static_cast<int>(BufferCategory::kActivationBoundaries)] / boundary;
  };
  const int64_t blocks = boundaries("name=blocks"), sqrt = boundaries("activation_checkpointing.segments=SQRT");
  // At the peak, two gradients of boundaries live besides the boundaries that wait for backward.
  EXPECT_GE(blocks, 126);
  EXPECT_LE(blocks, 128);
  EXPECT_LE(sqrt, 22 + 2);  // 2 sqrt(126) = 22.4.
}

TEST(WaysOutOfHybridSharding, OffersTheSmallestLargerGroupThatFits) {
  Job job = SmallDecoderJob(false);
  job.sharding.ranks = 8;
  job.sharding.accumulation = Accumulation::kSharded;
  job.sharding.shard_ranks = 4;
  const int64_t four = Plan(job).arena_bytes;
  job.sharding.shard_ranks = 1;
  job.memory.budget_bytes = four;
  const std::string message = Refusal(job);
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
  const std::string message = Refusal(job);
  EXPECT_FALSE(absl::StrContains(message, "sharding.ranks=")) << message;
}

TEST(Plan, RefusesPatternsThatMatchNothing) {
  const auto refusal = [](auto&& set) {
    Job job = SmallDecoderJob(false);
    job.runtime.device = DeviceType::kCuda;
    set(job);
    const absl::Status status = PlanJob(job, MachineOf()).status();
    return status.ok() ? "" : std::string(status.message());
  };
  EXPECT_TRUE(
      absl::StartsWith(refusal([](Job& job) {
                         job.optimizer.no_decay = {"embedding*", "embeding*"};
                       }),
                       "optimizer.no_decay[1]: \"embeding*\" matches no parameter of the model; found embedding."));
  EXPECT_TRUE(absl::StartsWith(
      refusal([](Job& job) { job.activation_checkpointing.recompute = {"blocks.*.ffn.nothing"}; }),
      "activation_checkpointing.recompute[0]: \"blocks.*.ffn.nothing\" matches no activation that could be "
      "recomputed of the model; found "));
  EXPECT_TRUE(absl::StartsWith(refusal([](Job& job) { job.memory.offload = {"block.*"}; }),
                               "memory.offload[0]: \"block.*\" matches no activation of the model; found "));
  EXPECT_EQ(refusal([](Job& job) {
              job.optimizer.no_decay = {"embedding*"};
              job.activation_checkpointing.recompute = {"blocks.0.*"};
              job.memory.offload = {"*"};
            }),
            "");
}

INSTANTIATE_TEST_SUITE_P(Budget, WaysOut, ::testing::Values(DeviceType::kCpu, DeviceType::kCuda),
                         [](const auto& info) { return info.param == DeviceType::kCpu ? "Cpu" : "Cuda"; });

// Returns a default budget that limits only host memory.
DefaultBudget HostOf(int64_t host_bytes) {
  return [=](int64_t) -> absl::StatusOr<Budget> {
    return Budget{.host_bytes = host_bytes, .host_origin = "a machine's memory"};
  };
}

Job OffloadingJob(Accumulation accumulation) {
  Job job = SmallDecoderJob(false);
  job.runtime.device = DeviceType::kCuda;
  job.memory.offload = {"blocks.*"};
  job.sharding.accumulation = accumulation;
  return job;
}

TEST(HostBudget, RefusesWithNumbersAndSettingsThatReallyFit) {
  const Job job = OffloadingJob(Accumulation::kLayered);
  const int64_t offloads = Plan(job).train.memory.host_bytes;
  EXPECT_TRUE(PlanJob(job, MachineOf(HostOf(offloads))).ok());
  const absl::Status refused = PlanJob(job, MachineOf(HostOf(offloads - 1))).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(refused.message());
  const std::string missing = absl::StrCat(
      "offloads ", FormatBytes(offloads), " to host memory per rank, host budget ", FormatBytes(offloads - 1),
      " (a machine's memory; memory.host_budget_bytes sets another), 1 B too little; fits with ");
  EXPECT_TRUE(absl::StartsWith(message, missing)) << message;
  const std::vector<std::string> settings = SettingsIn(message);
  EXPECT_NE(std::find(settings.begin(), settings.end(), "memory.offload=[]"), settings.end()) << message;
  for (const std::string& setting : settings) {
    const absl::StatusOr<Job> changed = ParseJobText(ResolvedJobText(job), "job", {setting});
    ASSERT_TRUE(changed.ok()) << setting << ": " << changed.status();
    EXPECT_TRUE(PlanJob(*changed, MachineOf(HostOf(offloads - 1))).ok()) << setting;
  }
  Job named = job;
  named.memory.host_budget_bytes = offloads;
  EXPECT_TRUE(PlanJob(named, MachineOf(HostOf(1))).ok());
  named.memory.host_budget_bytes = offloads - 1;
  const std::string without_origin =
      absl::StrCat("offloads ", FormatBytes(offloads), " to host memory per rank, host budget ",
                   FormatBytes(offloads - 1), ", 1 B too little; fits with ");
  EXPECT_TRUE(absl::StartsWith(PlanJob(named, MachineOf(HostOf(offloads))).status().message(), without_origin));
}

TEST(HostBudget, AJobThatExceedsBothIsToldOfBoth) {
  Job job = OffloadingJob(Accumulation::kLayered);
  const JobPlan plan = Plan(job);
  job.memory.budget_bytes = plan.arena_bytes - 2;
  EXPECT_TRUE(absl::StartsWith(
      PlanJob(job, MachineOf(HostOf(plan.train.memory.host_bytes - 3))).status().message(),
      absl::StrCat("needs ", FormatBytes(plan.arena_bytes), " per rank, budget ", FormatBytes(plan.arena_bytes - 2),
                   ", 2 B too little, and offloads ", FormatBytes(plan.train.memory.host_bytes),
                   " to host memory per rank, host budget ", FormatBytes(plan.train.memory.host_bytes - 3),
                   " (a machine's memory; memory.host_budget_bytes sets another), 3 B too little; ")));
}

// The settings that save memory together leave out offload if the host has no memory for it.
TEST(HostBudget, EverythingTogetherStaysWithinIt) {
  for (const std::vector<std::string>& offload : {std::vector<std::string>{}, {"blocks.*"}}) {
    Job job = OffloadingJob(Accumulation::kLayered);
    job.memory.offload = {};
    job.memory.budget_bytes = 1;
    job.memory.host_budget_bytes = 1;
    job.sharding.strategy = Strategy::kDdp;
    job.sharding.ranks = 2;
    const std::string hopeless = Refusal(job);
    EXPECT_TRUE(absl::StrContains(hopeless, "it is still too large with activation_checkpointing.preset=BLOCK, "))
        << hopeless;
    // All settings except offload.
    std::vector<std::string> settings = SettingsIn(hopeless);
    settings.erase(std::remove(settings.begin(), settings.end(), "memory.offload=*"), settings.end());
    settings.push_back("memory.budget_bytes=");
    const absl::StatusOr<Job> changed = ParseJobText(ResolvedJobText(job), "job", settings);
    ASSERT_TRUE(changed.ok()) << changed.status();
    job.memory.budget_bytes = Plan(*changed).arena_bytes;
    job.memory.offload = offload;
    const std::string message = Refusal(job);
    EXPECT_TRUE(absl::StrContains(message, "these together do: ")) << message;
    EXPECT_FALSE(absl::StrContains(message, "memory.offload=*")) << message;
    EXPECT_EQ(absl::StrContains(message, "memory.offload=[]"), !offload.empty()) << message;
  }
}

TEST(HostBudget, AutoTakesNoScheduleThatTheHostHasNoRoomFor) {
  const JobPlan any = Plan(OffloadingJob(Accumulation::kAuto));
  EXPECT_EQ(any.options.accumulation, Accumulation::kLayered);  // It sends the fewest bytes.
  const absl::StatusOr<JobPlan> little =
      PlanJob(OffloadingJob(Accumulation::kAuto), MachineOf(HostOf(any.train.memory.host_bytes - 1)));
  ASSERT_TRUE(little.ok()) << little.status();
  EXPECT_NE(little->options.accumulation, Accumulation::kLayered);
  EXPECT_TRUE(absl::StrContains(little->accumulation_reason,
                                absl::StrCat("LAYERED: ", FormatBytes(any.arena_bytes), ", ",
                                             FormatBytes(any.train.memory.host_bytes), " of host memory, sends ")))
      << little->accumulation_reason;
  EXPECT_TRUE(absl::StrContains(little->accumulation_reason, ", does not fit")) << little->accumulation_reason;
}

// Returns a default budget with both limits, named "a GPU's memory" and "a machine's memory".
DefaultBudget Here(int64_t bytes, int64_t host_bytes) {
  return [=](int64_t) -> absl::StatusOr<Budget> {
    return Budget{
        .bytes = bytes, .origin = "a GPU's memory", .host_bytes = host_bytes, .host_origin = "a machine's memory"};
  };
}

TEST(PlanJobForAnywhere, RemarksWhatThisMachineLacks) {
  Job job = OffloadingJob(Accumulation::kLayered);
  job.memory.budget_bytes = 0;
  const JobPlan plan = Plan(job);
  const int64_t arena = plan.arena_bytes, host = plan.train.memory.host_bytes;
  const auto remark = [&](const DefaultBudget& here, bool within) {
    std::string text = "before";
    const absl::StatusOr<JobPlan> planned = PlanJobForAnywhere(job, MachineOf(here), text);
    EXPECT_TRUE(planned.ok()) << planned.status();
    EXPECT_EQ(planned->arena_bytes, arena);
    EXPECT_EQ(planned->budget.origin, within ? "a GPU's memory" : "");
    return text;
  };
  EXPECT_EQ(remark(Here(arena, host), true), "");
  const std::string needs = absl::StrCat("a rank needs ", FormatBytes(arena), ", but its budget is ",
                                         FormatBytes(arena - 1), " (a GPU's memory)");
  const std::string offloads = absl::StrCat("a rank offloads ", FormatBytes(host), ", but its budget is ",
                                            FormatBytes(host - 1), " (a machine's memory)");
  EXPECT_EQ(remark(Here(arena - 1, host), false),
            absl::StrCat("This machine is too small for the job: ", needs,
                         ".\nIt was planned without that limit; set memory.budget_bytes to what a rank has on the "
                         "machine where the job will run.\n"));
  EXPECT_EQ(remark(Here(arena, host - 1), false),
            absl::StrCat("This machine is too small for the job: ", offloads,
                         ".\nIt was planned without that limit; set memory.host_budget_bytes to what a rank has on "
                         "the machine where the job will run.\n"));
  EXPECT_EQ(remark(Here(arena - 1, host - 1), false),
            absl::StrCat("This machine is too small for the job: ", needs, "; ", offloads,
                         ".\nIt was planned without that limit; set memory.budget_bytes and memory.host_budget_bytes "
                         "to what a rank has on the machine where the job will run.\n"));
  EXPECT_EQ(
      remark([](int64_t) -> absl::StatusOr<Budget> { return absl::FailedPreconditionError("there is no GPU"); }, false),
      "This machine cannot run the job: there is no GPU.\nIt was planned without a limit; set "
      "memory.budget_bytes to what a rank has on the machine where the job will run.\n");
}

TEST(PlanJobForAnywhere, WhatTheJobNamesCountsAndHereDoesNot) {
  Job job = OffloadingJob(Accumulation::kLayered);
  const int64_t arena = Plan(job).arena_bytes, host = Plan(job).train.memory.host_bytes;
  std::string remark;
  job.memory.budget_bytes = arena;
  job.memory.host_budget_bytes = host;
  EXPECT_TRUE(PlanJobForAnywhere(job, MachineOf(Here(1, 1)), remark).ok());
  EXPECT_EQ(remark, "");
  // The job sets only one of the two limits.
  job.memory.host_budget_bytes = 0;
  EXPECT_TRUE(PlanJobForAnywhere(job, MachineOf(Here(1, host - 1)), remark).ok());
  EXPECT_TRUE(absl::StartsWith(remark, "This machine is too small for the job: a rank offloads ")) << remark;
  job.memory.host_budget_bytes = host - 1;
  EXPECT_EQ(PlanJobForAnywhere(job, MachineOf(Here(arena, host)), remark).status().code(),
            absl::StatusCode::kResourceExhausted);
}

// With AUTO, no accumulation fits. The remark names the one that exceeds the limits by the fewest bytes.
TEST(PlanJobForAnywhere, TheScheduleThatLacksLeastIsTheOneToldOf) {
  const JobPlan layered = Plan(OffloadingJob(Accumulation::kLayered)),
                sharded = Plan(OffloadingJob(Accumulation::kSharded));
  ASSERT_LT(sharded.train.memory.host_bytes, layered.train.memory.host_bytes);
  Job job = OffloadingJob(Accumulation::kAuto);
  job.memory.budget_bytes = 0;
  std::string remark;
  const absl::StatusOr<JobPlan> plan = PlanJobForAnywhere(job, MachineOf(Here(sharded.arena_bytes - 1, 1)), remark);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_TRUE(absl::StrContains(remark, absl::StrCat("a rank offloads ", FormatBytes(sharded.train.memory.host_bytes),
                                                     ", but its budget is 1 B (a machine's memory)")))
      << remark;
  EXPECT_FALSE(absl::StrContains(remark, FormatBytes(layered.train.memory.host_bytes))) << remark;
}

constexpr int64_t kMachineBytes = int64_t{16} << 30;

// Returns a default budget that divides `bytes` by the number of ranks, and refuses more than `most` ranks.
DefaultBudget ShareOf(int64_t bytes, int64_t most = int64_t{1} << 20) {
  return [=](int64_t ranks) -> absl::StatusOr<Budget> {
    if (ranks > most) return absl::FailedPreconditionError("so many ranks cannot run here");
    return Budget{.bytes = bytes / ranks, .origin = absl::StrCat("a machine's memory, divided by ", ranks)};
  };
}

TEST(Budget, IsTheJobsOrTheDefaultOrNone) {
  Job job = SmallDecoderJob(false);
  const auto budget = [&](const DefaultBudget& default_budget) {
    return PlanJob(job, MachineOf(default_budget))->budget;
  };
  EXPECT_EQ(budget(ShareOf(kMachineBytes)).bytes, int64_t{1} << 40);
  EXPECT_EQ(budget(ShareOf(kMachineBytes)).origin, "");
  job.memory.budget_bytes = 0;
  job.sharding.ranks = 3;
  EXPECT_EQ(budget(ShareOf(kMachineBytes)).bytes, kMachineBytes / 3);
  EXPECT_EQ(budget(ShareOf(kMachineBytes)).origin, "a machine's memory, divided by 3");
  EXPECT_EQ(budget({}).bytes, kNoBudget);
  EXPECT_EQ(PlanJob(job, MachineOf(ShareOf(kMachineBytes, 2))).status().message(), "so many ranks cannot run here");
}

TEST(Budget, OfAMachineIsEasedByFewerRanks) {
  Job job = SmallDecoderJob(false);
  job.memory.budget_bytes = 0;
  // For each of a million ranks, padding alone takes megabytes, which is more than the machine has for it.
  job.sharding.ranks = 1 << 20;
  const absl::Status refused = PlanJob(job, MachineOf(ShareOf(kMachineBytes))).status();
  ASSERT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(refused.message());
  EXPECT_TRUE(absl::StrContains(message, "(a machine's memory, divided by 1048576; memory.budget_bytes sets another)"))
      << message;
  const std::vector<std::string> settings = SettingsIn(message);
  ASSERT_FALSE(settings.empty()) << message;
  ASSERT_TRUE(absl::StartsWith(settings.back(), "sharding.ranks=")) << message;
  job.sharding.ranks = std::stoll(settings.back().substr(settings.back().find('=') + 1));
  EXPECT_TRUE(PlanJob(job, MachineOf(ShareOf(kMachineBytes))).ok());
}

TEST(Budget, NoWayOutHasMoreRanksThanCanRunHere) {
  Job job = SmallDecoderJob(false);
  std::get<DecoderConfig>(job.model).layers = 24;  // Sharded memory outweighs the rest.
  std::get<DecoderConfig>(job.model).hidden = 1 << 12;
  job.batch.micro_batch = 1;
  job.sharding.ranks = 1;
  job.memory.budget_bytes = 0;
  job.sharding.accumulation = Accumulation::kSharded;
  const int64_t two_fit = [&] {
    Job two = job;
    two.sharding.ranks = 2;
    return Plan(two).arena_bytes;
  }();
  const auto refusal = [&](int64_t most) {
    const DefaultBudget same_for_each = [=](int64_t ranks) -> absl::StatusOr<Budget> {
      if (ranks > most) return absl::FailedPreconditionError("so many ranks cannot run here");
      return Budget{.bytes = two_fit, .origin = "a GPU's memory"};
    };
    return std::string(PlanJob(job, MachineOf(same_for_each)).status().message());
  };
  EXPECT_TRUE(absl::StrContains(refusal(2), "sharding.ranks=2 (")) << refusal(2);
  EXPECT_FALSE(absl::StrContains(refusal(1), "sharding.ranks=")) << refusal(1);
}

// Scratch may depend on the number of ranks, for example through the number of threads of a rank.
TEST(Budget, AWayOutHasTheOpsOfItsRanks) {
  Job one = SmallDecoderJob(false);
  one.memory.budget_bytes = 0;
  one.sharding.accumulation = Accumulation::kSharded;
  one.sharding.ranks = 1;
  Job two = one;
  two.sharding.ranks = 2;
  const auto machine = [](int64_t bytes) {
    return Machine{
        .create_ops = [](int64_t ranks) { return std::make_unique<ScratchOnlyOps>(ranks << 16); },
        .default_budget = [=](int64_t ranks) -> absl::StatusOr<Budget> { return Budget{.bytes = bytes / ranks}; }};
  };
  const absl::StatusOr<JobPlan> plan = PlanJob(one, machine(kNoBudget));
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto refusal = [&](int64_t bytes) { return std::string(PlanJob(two, machine(bytes)).status().message()); };
  EXPECT_TRUE(absl::StrContains(refusal(plan->arena_bytes),
                                absl::StrCat("sharding.ranks=1 (", FormatBytes(plan->arena_bytes), ")")))
      << refusal(plan->arena_bytes);
  EXPECT_FALSE(absl::StrContains(refusal(plan->arena_bytes - 1), "sharding.ranks=1 ("));
}

TEST(Hostile, SizesBeyondAnyMachineAreRefused) {
  Job job = SmallDecoderJob(false);
  job.batch.micro_batch = 1 << 20;
  job.batch.sequence_length = 1 << 24;
  std::get<DecoderConfig>(job.model).hidden = 1 << 26;
  EXPECT_EQ(PlanJob(job, MachineOf()).status().code(), absl::StatusCode::kInvalidArgument);

  // So many tokens that the chunks of the loss would be more instructions than a program can have.
  job = SmallDecoderJob(false);
  job.batch.sequence_length = 1 << 24;
  job.memory.loss_chunk_tokens = 1;
  EXPECT_EQ(PlanJob(job, MachineOf()).status().code(), absl::StatusCode::kInvalidArgument);

  job = SmallDecoderJob(false);
  std::get<DecoderConfig>(job.model).layers = 1 << 16;
  EXPECT_EQ(PlanJob(job, MachineOf()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Hostile, ManyMicroBatchesOnlyRuleOutLayered) {
  Job job = SmallDecoderJob(false);
  job.batch.global_batch = int64_t{1} << 58;
  const JobPlan plan = Plan(job);
  EXPECT_NE(plan.options.accumulation, Accumulation::kLayered);
  EXPECT_FALSE(plan.candidates[2].status.ok());
}

TEST(Hostile, AnUnknownVocabularyIsRefused) {
  Job job = SmallDecoderJob(false);
  std::get<DecoderConfig>(job.model).vocabulary = 0;
  const absl::Status status = PlanJob(job, MachineOf()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(), "model.decoder.vocabulary")) << status;
}

}  // namespace
}  // namespace shale
