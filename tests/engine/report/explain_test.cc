#include "engine/report/explain.h"

#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/planner/summary.h"
#include "engine/text/numbers.h"
#include "gtest/gtest.h"
#include "tests/engine/planner/planner_jobs.h"
#include "tests/engine/report/report_support.h"

namespace shale {
namespace {

std::string Explain(const Job& job) {
  absl::StatusOr<std::string> text = ExplainText(job, Plan(job), ScratchOnlyOps());
  EXPECT_TRUE(text.ok()) << text.status();
  return *std::move(text);
}

// Returns the table row that starts with `name`, after `title`.
std::string Row(const std::string& text, absl::string_view title, absl::string_view name) {
  bool found = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    found |= absl::StartsWith(line, title);
    if (found && absl::StartsWith(line, absl::StrCat("  ", name, " "))) return Flat(std::string(line));
  }
  return "";
}

Job Named(Accumulation accumulation) {
  Job job = SmallDecoderJob(false);
  job.sharding.accumulation = accumulation;
  return job;
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
  const int64_t keep_all = Plan(job).arena_bytes;
  for (CheckpointingPreset preset :
       {CheckpointingPreset::kCheap, CheckpointingPreset::kAttention, CheckpointingPreset::kFeedForward,
        CheckpointingPreset::kSublayers, CheckpointingPreset::kBlock}) {
    job.activation_checkpointing.preset = preset;
    const JobPlan plan = Plan(job);
    const FlopsSummary flops = SummarizeFlops(plan.train.step.program);
    const std::string saved =
        plan.arena_bytes == keep_all ? "the same" : absl::StrCat("saves ", FormatBytes(keep_all - plan.arena_bytes));
    EXPECT_EQ(Row(text, "What each preset", std::string(ToString(preset))),
              absl::StrCat(ToString(preset), " ", FormatBytes(plan.arena_bytes), " ", saved, " ",
                           FormatFlops(flops.recompute), " (", Percent(flops.recompute, flops.forward + flops.backward),
                           ") 0"));
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
                    FormatFlops(flops.recompute), " (", Percent(flops.recompute, flops.forward + flops.backward), ") ",
                    gathers(plan) - gathers(keep_all), preset == CheckpointingPreset::kCheap ? " this job" : ""));
    }
  }
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

TEST(Explain, CategoriesAddUpToThePeak) {
  const Job job = Named(Accumulation::kSharded);
  const JobPlan plan = Plan(job);
  const std::string text = Explain(job);
  for (int c = 0; c < kBufferCategories; ++c) {
    const int64_t bytes = plan.train.memory.bytes_at_peak[c];
    const std::string row = Row(text, "Where every byte goes", ToString(static_cast<BufferCategory>(c)));
    EXPECT_EQ(row.empty(), bytes == 0) << row;
    EXPECT_TRUE(bytes == 0 || absl::StrContains(row, FormatBytes(bytes))) << row;
  }
}

// Regression: for SGD without momentum the text said "SGD's , of all parameters".
TEST(Explain, AnOptimizerWithoutStatesKeepsOnlyItsCount) {
  Job job = Named(Accumulation::kSharded);
  job.optimizer.kind = OptimizerKind::kSgd;
  job.optimizer.momentum = 0.9;
  const std::string with = Row(Explain(job), "Where every byte goes", "optimizer state");
  EXPECT_TRUE(absl::EndsWith(with, " SGD's momentum (f32), of this rank's 1/5")) << with;
  job.optimizer.momentum = 0;
  const std::string without = Row(Explain(job), "Where every byte goes", "optimizer state");
  EXPECT_TRUE(absl::EndsWith(without, " the count of updates: SGD keeps nothing else")) << without;
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
