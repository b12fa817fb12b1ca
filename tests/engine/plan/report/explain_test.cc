#include "engine/plan/report/explain.h"

#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/api/job.h"
#include "engine/plan/planner/draft.h"
#include "engine/plan/planner/options.h"
#include "engine/plan/planner/summary.h"
#include "engine/strings/printing.h"
#include "gtest/gtest.h"
#include "tests/engine/plan/planner/measured.h"
#include "tests/engine/plan/planner/planner_jobs.h"
#include "tests/engine/plan/report/report_support.h"

namespace shale {
namespace {

std::string Ratio(int64_t bytes, int64_t of) {
  return absl::StrFormat("%.3f", static_cast<double>(bytes) / static_cast<double>(of));
}

TEST(Explain, TheFirstAccumulationAddsWhatGradientsSharedWithForwardAndFurtherOnesNothing) {
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync}) {
    Job job = Named(accumulation);
    const int64_t four = Plan(job).arena_bytes;
    const std::string text = Flat(Explain(job));
    job.batch.global_batch = 20;
    EXPECT_EQ(Plan(job).arena_bytes, four) << "K = 2";
    job.batch.global_batch = 10;
    const int64_t one = Plan(job).arena_bytes;
    EXPECT_LT(one, four);
    EXPECT_TRUE(absl::StrContains(
        text, absl::StrCat("With K = 4 micro-batches a step one rank needs ", FormatBytes(four), ", with one ",
                           FormatBytes(one), ": the first accumulation adds ", FormatBytes(four - one))))
        << text;
  }
}

TEST(Explain, NoUpdateInBackwardIsComparedWhereTheJobCannotHaveIt) {
  for (const auto& [compute, can] :
       {std::pair(ComputePrecision::kBFloat16, true), {ComputePrecision::kFloat16, false}}) {
    Job job = SmallDecoderJob(false);
    job.precision.compute = compute;
    EXPECT_EQ(absl::StrContains(Flat(Explain(job)), "If it updated each unit in backward"), can);
  }
}

TEST(Explain, LeanStateIsComparedWithTheOtherForms) {
  Job job = SmallDecoderJob(false);
  constexpr absl::string_view kTitle = "What a parameter costs";
  EXPECT_FALSE(absl::StrContains(Explain(job), kTitle)) << "fp32 has no such choice";
  job.precision.compute = ComputePrecision::kBFloat16;
  const auto expect = [&](absl::string_view setting, absl::string_view wanted) {
    EXPECT_TRUE(absl::StrContains(Row(Explain(job), kTitle, setting), wanted)) << setting << "\n" << Explain(job);
  };
  expect("precision.master=MASTER_FP32", "14 bytes a parameter this job");
  expect("precision.master=SPLIT", "12 bytes a parameter");
  expect("optimizer.state=LEAN", "6 bytes a parameter");
  expect("precision.gradient_shards=FP32", "4 bytes a parameter on top this job");
  expect("precision.gradient_shards=BF16", "2 bytes a parameter on top");
  job.precision.master = MasterWeights::kNone;
  SetLeanMoments(job.optimizer);
  expect("optimizer.state=LEAN", "6 bytes a parameter this job");
  job.optimizer.kind = OptimizerKind::kAdamW8Bit;
  job.optimizer.moments = Moments::kFloat32;
  expect("optimizer.state=LEAN", "4.031 bytes a parameter this job");
}

TEST(Explain, LayeredKeepsTensorsForEachMicroBatch) {
  Job job = Named(Accumulation::kLayered);
  const int64_t four = Plan(job).arena_bytes;
  const std::string text = Flat(Explain(job));
  job.batch.global_batch = 10;
  const int64_t one = Plan(job).arena_bytes;
  EXPECT_TRUE(absl::StrContains(
      text, absl::StrCat("With K = 4 micro-batches a step one rank needs ", FormatBytes(four), ", with one ",
                         FormatBytes(one), ": accumulating adds ", FormatBytes(four - one))))
      << text;
}

TEST(Explain, PresetsShowWhatTheirOwnPlansNeed) {
  Job job = Named(Accumulation::kSharded);
  const std::string text = Explain(job);
  const JobPlan none = Plan(job);
  const int64_t keep_all = none.arena_bytes, all_activations = MeasureActivations(none.train.step.program);
  for (CheckpointingPreset preset :
       {CheckpointingPreset::kCheap, CheckpointingPreset::kAttention, CheckpointingPreset::kFeedForward,
        CheckpointingPreset::kSublayers, CheckpointingPreset::kBlock}) {
    job.activation_checkpointing.preset = preset;
    const JobPlan plan = Plan(job);
    const FlopsSummary flops = SummarizeFlops(plan.train.step.program);
    const std::string saved =
        plan.arena_bytes == keep_all ? "the same" : absl::StrCat("saves ", FormatBytes(keep_all - plan.arena_bytes));
    const int64_t activations = MeasureActivations(plan.train.step.program);
    EXPECT_EQ(
        Row(text, "What each preset", std::string(ToString(preset))),
        absl::StrCat(ToString(preset), " ", FormatBytes(plan.arena_bytes), " ", saved, " ", FormatBytes(activations),
                     " ", Ratio(activations, all_activations), " ", FormatFlops(flops.recompute), " (",
                     Percent(flops.recompute, flops.forward + flops.backward), ") 0"));
  }
}

TEST(Explain, SegmentsShowWhatTheirOwnPlansNeedAndGather) {
  Job job = Named(Accumulation::kSharded);
  const JobPlan keep_all = Plan(job);
  const auto gathers = [&](const JobPlan& plan) {
    return SummarizeCommunication(plan.train.step.program, plan.options.mesh).gathers;
  };
  for (int64_t own_blocks : {1, 3}) {
    job.activation_checkpointing = {.preset = CheckpointingPreset::kCheap, .segment_blocks = own_blocks};
    const std::string text = Explain(job);
    for (const auto& [preset, blocks] :
         std::vector<std::pair<CheckpointingPreset, int64_t>>{{CheckpointingPreset::kNone, 2},
                                                              {CheckpointingPreset::kBlock, 2},
                                                              {CheckpointingPreset::kBlock, own_blocks},
                                                              {CheckpointingPreset::kCheap, own_blocks}}) {
      Job other = job;
      other.activation_checkpointing = {.preset = preset, .segment_blocks = blocks};
      const JobPlan plan = Plan(other);
      const FlopsSummary flops = SummarizeFlops(plan.train.step.program);
      const int64_t saved = keep_all.arena_bytes - plan.arena_bytes;
      const std::string name = absl::StrCat(ToString(preset), blocks > 1 ? absl::StrCat(", segments of ", blocks) : "");
      EXPECT_EQ(Row(text, "What each preset", name),
                absl::StrCat(
                    name, " ", FormatBytes(plan.arena_bytes), " ",
                    saved == 0 ? "the same" : absl::StrCat("saves ", FormatBytes(saved)), " ",
                    FormatBytes(MeasureActivations(plan.train.step.program)), " ",
                    Ratio(MeasureActivations(plan.train.step.program), MeasureActivations(keep_all.train.step.program)),
                    " ", FormatFlops(flops.recompute), " (", Percent(flops.recompute, flops.forward + flops.backward),
                    ") ", gathers(plan) - gathers(keep_all), preset == CheckpointingPreset::kCheap ? " this job" : ""));
    }
  }
}

TEST(Explain, OnePieceIsTheSameJobWithItsBatchInOneMicroBatch) {
  const std::string title = "What the same global batch needs in one piece";
  Job job = Named(Accumulation::kSharded);  // K = 4 micro-batches of 2 sequences.
  const JobPlan pieces = Plan(job);
  const std::string four = Row(Explain(job), title, "K = 1");
  job.batch.micro_batch = 8;
  const JobPlan piece = Plan(job);
  const auto row = [](const JobPlan& plan, int64_t micro_batch) {
    return absl::StrCat("K = ", plan.options.micro_batches, " ", micro_batch, " ",
                        FormatBytes(MeasureActivations(plan.train.step.program)), " ", FormatBytes(plan.arena_bytes));
  };
  EXPECT_EQ(four, absl::StrCat(row(piece, 8), " adds ", FormatBytes(piece.arena_bytes - pieces.arena_bytes)));
  // Every activation has one row per token, so the factor is that of the tokens.
  EXPECT_EQ(MeasureActivations(piece.train.step.program), 4 * MeasureActivations(pieces.train.step.program));
  const std::string one = Explain(job);
  EXPECT_EQ(Row(one, title, "K = 1"), row(piece, 8) + " the same this job");
  job.batch.micro_batch = 1;
  const JobPlan ones = Plan(job);
  EXPECT_EQ(Row(one, title, "K = 8"),
            absl::StrCat(row(ones, 1), " saves ", FormatBytes(piece.arena_bytes - ones.arena_bytes)));
  job.batch.global_batch = 5;
  EXPECT_FALSE(absl::StrContains(Explain(job), title));
}

TEST(Explain, HeadroomIsTheLargestMicroBatchThatFits) {
  Job job = Named(Accumulation::kSharded);
  job.batch.micro_batch = 6;  // K = 2, as with 4, 5 and 7 sequences.
  const int64_t six = Plan(job).arena_bytes;
  job.batch.micro_batch = 7;
  const int64_t seven = Plan(job).arena_bytes;
  ASSERT_LT(six, seven);
  const auto exact = [](int64_t bytes) {
    return absl::StrCat(" needs ", FormatBytes(bytes), " (", WithCommas(bytes), " bytes)");
  };
  for (int64_t budget : {six, seven - 1}) {
    job.memory.budget_bytes = budget;
    job.batch.micro_batch = 2;
    const std::string fit = absl::StrCat("batch.micro_batch=6 fits: SHARDED", exact(six), " per rank, budget ",
                                         FormatBytes(budget), "; 7", exact(seven), ".");
    const std::string text = Flat(Explain(job));
    EXPECT_TRUE(absl::StrContains(text, fit + " This job's is 2.")) << text;
    job.batch.micro_batch = 6;
    EXPECT_TRUE(absl::StrContains(Flat(Explain(job)), fit + " This job's is the same."));
  }
  job.memory.budget_bytes = int64_t{1} << 40;
  EXPECT_TRUE(absl::StrContains(Flat(Explain(job)), "batch.micro_batch=8 fits: "));
  EXPECT_TRUE(absl::StrContains(Flat(Explain(job)), "; a rank has no more sequences in a step. This job's is 6."));
  job.memory.budget_bytes = 0;
  EXPECT_TRUE(absl::StrContains(Explain(job), "There is no budget; memory.budget_bytes sets one."));
}

TEST(Explain, TheLearningRateFollowsTheGlobalBatch) {
  Job job = Named(Accumulation::kSharded);
  job.optimizer.learning_rate = 1e-3;
  job.lr_schedule = {.epochs = 2, .warmup_steps = 30};
  EXPECT_TRUE(absl::StrContains(Flat(Explain(job)),
                                "The peak is 0.001: it does not depend on the global batch (optimizer.scaling "
                                "CONSTANT). Warm-up takes 30 steps."));
  job.optimizer.base_batch = 10;  // A quarter of the global batch.
  job.optimizer.scaling = LearningRateScaling::kSquareRoot;
  job.lr_schedule = {.epochs = 2, .warmup_samples = 1001};
  EXPECT_TRUE(absl::StrContains(Flat(Explain(job)), "The peak is 0.002: 0.001 x sqrt(40 / 10), "));
  EXPECT_TRUE(absl::StrContains(Flat(Explain(job)), "Warm-up takes 26 steps, 1,001 sequences at 40 a step."));
  job.optimizer.scaling = LearningRateScaling::kLinear;
  job.lr_schedule = {.steps = 10, .warmup_tokens = 2800};
  EXPECT_TRUE(absl::StrContains(Flat(Explain(job)), "The peak is 0.004: 0.001 x 40 / 10, "));
  EXPECT_TRUE(absl::StrContains(Flat(Explain(job)), "Warm-up takes 10 steps, 2,800 tokens at 280 a step."));
}

TEST(Explain, PackingSaysWhatASequenceHolds) {
  Job job = SmallDecoderJob(false);
  EXPECT_FALSE(absl::StrContains(Explain(job), "What a sequence holds"));
  job.data.packing = Packing::kPack;
  EXPECT_TRUE(absl::StrContains(Flat(Explain(job)), "Several documents (data.packing PACK), packed by best fit."));
  job.data.packing = Packing::kPad;
  EXPECT_TRUE(absl::StrContains(Flat(Explain(job)), "One document (data.packing PAD), and padding"));
  job.data.long_documents = LongDocuments::kDrop;
  EXPECT_TRUE(absl::StrContains(Flat(Explain(job)), "nothing is kept (data.long_documents DROP)."));
  job.data.path = "/chats";
  job.data.mix = {{.share = 250, .path = "/code"}};
  EXPECT_TRUE(absl::StrContains(Flat(Explain(job)),
                                "Of any 1,000 samples in a row, 750 are of /chats, 250 of /code (data.mix), evenly"));
}

TEST(Explain, WeightsOfTargetsSayWhatDividesTheLoss) {
  Job job = SmallDecoderJob(false);
  EXPECT_FALSE(absl::StrContains(Explain(job), "weights of targets"));
  job.data.path.clear();
  job.data.target_weights = TargetWeights::kOverWeights;
  EXPECT_TRUE(
      absl::StrContains(Flat(Explain(job)), "divided by the sum of |weight| (data.target_weights OVER_WEIGHTS)"));
  job.data.target_weights = TargetWeights::kOverTokens;
  EXPECT_TRUE(
      absl::StrContains(Flat(Explain(job)), "divided by the number of targets (data.target_weights OVER_TOKENS)"));
}

TEST(Explain, DdpAllReducesOnceInsteadOfForEveryMicroBatch) {
  Job job = Named(Accumulation::kNoSync);
  job.sharding.strategy = Strategy::kDdp;
  const std::string text = Flat(Explain(job));
  int64_t gradients = 0;  // Of all flat groups, with their padding.
  for (const GroupState& g : Plan(job).train.step.state.groups) gradients += 4 * g.layout().padded_elements();
  EXPECT_TRUE(
      absl::StrContains(text, absl::StrCat("all-reduces gradients of ", FormatBytes(gradients), " once a step; ")))
      << text;
  EXPECT_TRUE(absl::StrContains(text, absl::StrCat("4 times, ", FormatBytes(4 * gradients), " a step."))) << text;
  job.sharding.strategy = Strategy::kZero1;
  EXPECT_FALSE(absl::StrContains(Explain(job), "all-reduces gradients"));
}

TEST(Explain, OffloadShowsWhatItsOwnPlansNeedWhereItSaves) {
  Job job = Named(Accumulation::kLayered);
  EXPECT_FALSE(absl::StrContains(Explain(job), "memory.offload"));
  job.runtime.device = DeviceType::kCuda;
  const std::string text = Explain(job);
  const int64_t own = Plan(job).arena_bytes;
  job.memory.offload = {"*"};
  for (CheckpointingPreset preset : {CheckpointingPreset::kNone, CheckpointingPreset::kBlock}) {
    job.activation_checkpointing.preset = preset;
    const JobPlan plan = Plan(job);
    EXPECT_EQ(Row(text, "What memory.offload", std::string(ToString(preset))),
              absl::StrCat(ToString(preset), " ", FormatBytes(plan.arena_bytes), " saves ",
                           FormatBytes(own - plan.arena_bytes), " ", FormatBytes(plan.train.memory.host_bytes), " ",
                           FormatBytes(SummarizeOffload(plan.train.step.program).offloaded_bytes)));
  }
}

TEST(Explain, StateOffloadShowsWhatItsOwnPlansNeedAndMove) {
  Job job = Named(Accumulation::kSharded);
  EXPECT_FALSE(absl::StrContains(Explain(job), "memory.offload_state"));
  job.runtime.device = DeviceType::kCuda;
  const std::string text = Explain(job);
  const int64_t own = Plan(job).arena_bytes;
  job.memory.offload_state = {.moments = true};
  const JobPlan plan = Plan(job);
  const OffloadSummary moves = SummarizeOffload(plan.train.step.program);
  const int64_t saved = own - plan.arena_bytes;
  EXPECT_EQ(Row(text, "What memory.offload_state", "MOMENTS"),
            absl::StrCat("MOMENTS ", FormatBytes(plan.arena_bytes), " ",
                         saved == 0 ? "the same" : absl::StrCat("saves ", FormatBytes(saved)), " ",
                         FormatBytes(plan.train.memory.host_bytes), " ",
                         FormatBytes(moves.state_fetched_bytes + moves.state_returned_bytes)));
  EXPECT_TRUE(absl::StrContains(Explain(job), "this job"));
  job.memory.offload_state = {};
  job.optimizer.device = UpdateDevice::kHost;
  const JobPlan on_host = Plan(job);
  const OffloadSummary down = SummarizeOffload(on_host.train.step.program);
  EXPECT_EQ(Row(text, "What memory.offload_state", "update"),
            absl::StrCat("update on the HOST ", FormatBytes(on_host.arena_bytes), " saves ",
                         FormatBytes(own - on_host.arena_bytes), " ", FormatBytes(on_host.train.memory.host_bytes), " ",
                         FormatBytes(down.gradient_bytes + down.state_fetched_bytes)));
}

TEST(Explain, NoSyncHoldsTheGradientsOfTheWholeModel) {
  Job job = Named(Accumulation::kSharded);
  const JobPlan own = Plan(job);
  const std::string text = Explain(job);
  // The parameters have 12 columns: three blocks, embedding and head of 50 rows each, and the final norm.
  const int64_t block = 12 * 24 + 12 * 12 + 12 * 40 + 20 * 12 + 2 * 12, parameters = 3 * block + 2 * 50 * 12 + 12;
  EXPECT_TRUE(absl::StrContains(
      Flat(text),
      absl::StrCat("all ", WithCommas(parameters), " parameters in fp32 on every rank, ", FormatBytes(4 * parameters))))
      << text;
  const JobPlan deferred = Plan(Named(Accumulation::kNoSync));
  EXPECT_EQ(Row(text, "What accumulating", "NO_SYNC"),
            absl::StrCat("NO_SYNC ", FormatBytes(deferred.arena_bytes), " adds ",
                         FormatBytes(deferred.arena_bytes - own.arena_bytes), " ",
                         FormatBytes(SummarizeCommunication(deferred.train.step.program, {.shard = 5}).sent_bytes)));
}

TEST(Explain, NoSyncOfGradientsIsStrategyOptimizer) {
  Job job = Named(Accumulation::kSharded);
  job.sharding.strategy = Strategy::kZero2;
  const std::string text = Explain(job);
  job.sharding.strategy = Strategy::kZero1;
  job.sharding.accumulation = Accumulation::kNoSync;
  EXPECT_TRUE(absl::StrContains(Row(text, "What accumulating", "NO_SYNC with strategy ZERO1"),
                                FormatBytes(Plan(job).arena_bytes)))
      << text;
}

TEST(Explain, TheOptimizerStepAddsNothing) {
  EXPECT_TRUE(absl::StrContains(Flat(Explain(Named(Accumulation::kSharded))), "It adds nothing"));
}

// Regression: nothing bounded how long the comparisons took.
TEST(Explain, WhatIsNotFinishedInTimeIsNamed) {
  const Job job = SmallDecoderJob(false);
  const JobPlan plan = Plan(job);
  const std::string whole = Explain(job);
  const auto within = [&](std::chrono::nanoseconds time) {
    return ExplainText(job, plan, MachineOf(), {.deadline = WorkLimits::Clock::now() + time});
  };
  EXPECT_EQ(within(std::chrono::nanoseconds(0)).status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(within(std::chrono::hours(1)).value(), whole);
  for (auto time = std::chrono::microseconds(50); time < std::chrono::seconds(1); time *= 3) {
    const absl::StatusOr<std::string> text = within(time);
    if (!text.ok()) continue;
    // What was finished is what it would have been.
    const size_t end = text->find("Left out, because the time for planning is over: ");
    EXPECT_TRUE(absl::StartsWith(whole, text->substr(0, end))) << *text;
    EXPECT_EQ(end == text->npos, *text == whole);
  }
  const std::atomic<bool> cancelled = true;
  EXPECT_EQ(ExplainText(job, plan, MachineOf(), {.cancelled = &cancelled}).status().code(),
            absl::StatusCode::kCancelled);
}

// Each option of the table is compared, in a section of its own or in the last one.
TEST(Explain, OptionsWithoutASectionAreCompared) {
  Job job = Named(Accumulation::kSharded);
  job.precision.compute = ComputePrecision::kBFloat16;
  const std::string text = Explain(job), title = "What other settings would need";
  EXPECT_TRUE(absl::StrContains(text, title));
  const int64_t own = Plan(job).arena_bytes;
  for (const Option& option : Options()) {
    if (option.settings == nullptr || (option.flags & kHasOwnSection) != 0) continue;
    for (const Settings& settings : option.settings({.job = job})) {
      std::vector<std::string> texts;
      for (const Override& setting : settings) texts.push_back(setting.text());
      const absl::StatusOr<Job> changed = WithOverrides(job, texts);
      ASSERT_TRUE(changed.ok()) << changed.status();
      const JobPlan plan = Plan(*changed);
      const int64_t saved = own - plan.arena_bytes;
      const std::string difference = saved == 0  ? "the same"
                                     : saved > 0 ? absl::StrCat("saves ", FormatBytes(saved))
                                                 : absl::StrCat("adds ", FormatBytes(-saved));
      const std::string name = absl::StrJoin(texts, ", ");
      EXPECT_EQ(Row(text, title, name), absl::StrCat(name, " ", FormatBytes(plan.arena_bytes), " ", difference, " ",
                                                     FormatBytes(plan.chosen().cost.sent_bytes)));
      if (!option.caveat.empty()) {
        EXPECT_TRUE(absl::StrContains(Flat(text), absl::StrCat(name, ": ", option.caveat, "."))) << text;
      }
    }
  }
}

// Graphs take the issue of instructions off a step, and a job that offloads has none.
TEST(Explain, SecondsAreThoseOfTheJobThatARowDescribes) {
  Job job = Named(Accumulation::kSharded);
  job.runtime.device = DeviceType::kCuda;
  job.sharding.ranks = 1;
  proto::MachineProfile profile;
  profile.set_device("CUDA");
  profile.set_issue_seconds(1e-3);
  const Machine machine = MachineWith(profile);
  const absl::StatusOr<std::string> text = ExplainText(job, Plan(job), machine);
  ASSERT_TRUE(text.ok()) << text.status();
  const WorkLimits limits;
  Drafter drafter(job, machine, limits);
  const double own = drafter.Try({}).cost.seconds;
  const double offloading = drafter.Try({{"memory.offload", "[*]"}}).cost.seconds;
  EXPECT_GT(offloading, 2 * own);
  EXPECT_TRUE(absl::EndsWith(Row(*text, "What each preset", "NONE"), absl::StrCat(FormatSeconds(own), " this job")))
      << *text;
  EXPECT_TRUE(absl::EndsWith(Row(*text, "What memory.offload=* would", "NONE"), FormatSeconds(offloading))) << *text;
}

TEST(Explain, StrategiesAreComparedWithAHybridMesh) {
  const std::string title = "What other strategies would need";
  Job job = Named(Accumulation::kSharded);  // Five ranks: a prime has no groups.
  EXPECT_FALSE(absl::StrContains(Explain(job), "shard_ranks"));
  job.sharding.ranks = 4;
  const std::string sharded = Explain(job);
  EXPECT_TRUE(absl::EndsWith(Row(sharded, title, "FULL_SHARD"), " this job")) << sharded;
  EXPECT_FALSE(Row(sharded, title, "FULL_SHARD, shard_ranks 2").empty()) << sharded;
  job.sharding.shard_ranks = 2;
  const std::string hybrid = Explain(job);
  EXPECT_TRUE(absl::EndsWith(Row(hybrid, title, "FULL_SHARD, shard_ranks 2"), " this job")) << hybrid;
  EXPECT_FALSE(Row(hybrid, title, "FULL_SHARD").empty()) << hybrid;
  const std::string weights = Row(hybrid, "Where every byte goes", "optimizer state");
  EXPECT_TRUE(absl::EndsWith(weights, "of this rank's 1/2")) << weights;
}

TEST(Explain, OneRankHasNobodyToSynchronizeWith) {
  Job job = SmallMlpJob();
  job.sharding.ranks = 1;
  EXPECT_TRUE(absl::StrContains(Explain(job), "Nothing: there is one rank."));
}

}  // namespace
}  // namespace shale
