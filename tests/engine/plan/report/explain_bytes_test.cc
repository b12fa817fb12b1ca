// Tests of what --explain says about the bytes of the job itself.
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/api/job.h"
#include "engine/api/layers.h"
#include "engine/plan/planner/summary.h"
#include "engine/strings/printing.h"
#include "gtest/gtest.h"
#include "tests/engine/plan/planner/planner_jobs.h"
#include "tests/engine/plan/report/report_support.h"

namespace shale {
namespace {

// B = 2 sequences of S = 7 tokens, width 12, 2 heads, fp32. The three blocks have four boundaries, the embedding's
// output and their own.
TEST(ExplainBytes, ActivationsOfBlocksAreTheirBoundaries) {
  Job job = Named(Accumulation::kSharded);
  job.activation_checkpointing.preset = CheckpointingPreset::kBlock;
  const std::string row = Row(Explain(job), "What each preset", "BLOCK");
  const int64_t boundary = 2 * 7 * 12 * 4;
  EXPECT_TRUE(absl::StrContains(row, absl::StrCat(" ", FormatBytes(4 * boundary), " "))) << row;
}

TEST(ExplainBytes, AttentionScoresAreCountedAndNotStored) {
  const Job job = Named(Accumulation::kSharded);
  const int64_t scores = 2 * 2 * 7 * 7 * 4, lse = 2 * 2 * 7 * 4;
  const std::string text = Flat(Explain(job));
  EXPECT_TRUE(absl::StrContains(
      text, absl::StrCat("B x H x S x S = 2 x 2 x 7 x 7 in f32, would take ", FormatBytes(scores),
                         " for one micro-batch, and ", FormatBytes(3 * scores), " for all 3 layers.")))
      << text;
  EXPECT_TRUE(absl::StrContains(text, absl::StrCat("instead, ", FormatBytes(lse), " a layer."))) << text;
  for (const Buffer& buffer : Plan(job).train.step.program.buffers) EXPECT_NE(buffer.size_bytes(), scores);
  EXPECT_FALSE(absl::StrContains(Explain(SmallMlpJob()), "attention scores"));
}

// T = 32 tokens of width 32, inner width 48. Both norms and the activation function keep one byte for each element in
// place of two, and the output of attention keeps one more.
TEST(ExplainBytes, MatMulsInFp8KeepTheirInputsInOneByte) {
  Job job = SmallFloat8Job();
  job.sharding.accumulation = Accumulation::kSharded;
  const std::string text = Explain(job);
  EXPECT_TRUE(absl::StrContains(Flat(text), "kept from forward to backward under NONE, inputs of matmuls in fp8"));
  EXPECT_FALSE(absl::StrContains(Row(text, "What matmuls in FP8 change", "FP8"), "too large"));
  EXPECT_FALSE(absl::StrContains(Row(text, "What matmuls in FP8 change", "AS_COMPUTED"), "too large"));
  const auto activations = [](const Job& of) { return MeasureActivations(Plan(of).train.step.program); };
  Job as_computed = job;
  as_computed.precision.matmuls = MatMulPrecision::kAsComputed;
  // A block also keeps a scalar of each matmul, the scale of its input. Those of weights come with the gathered ones.
  const int64_t saved = 3 * 32 * (32 + 32 + 48 - 32), scalars = 3 * 4 * 4;
  EXPECT_TRUE(
      absl::StrContains(Flat(text), "this rank's shard of the weights of matmuls in fp8, which is gathered in"));
  EXPECT_EQ(activations(as_computed) - activations(job), saved - scalars);
  EXPECT_FALSE(absl::StrContains(Explain(as_computed), "FP8"));
  // What is computed again is not kept.
  job.activation_checkpointing.preset = CheckpointingPreset::kCheap;
  const std::string cheap = Flat(Explain(job));
  EXPECT_TRUE(absl::StrContains(cheap, "kept from forward to backward under CHEAP")) << cheap;
  EXPECT_FALSE(absl::StrContains(cheap, "inputs of matmuls in fp8")) << cheap;
}

// A micro-batch has 32 tokens, so each column of the kept codes is one tile, with one scale.
TEST(ExplainBytes, BlockwiseScalesAreComparedAndCounted) {
  Job job = SmallFloat8Job();
  job.sharding.accumulation = Accumulation::kSharded;
  const auto activations = [](const Job& of) { return MeasureActivations(Plan(of).train.step.program); };
  const int64_t tensorwise = activations(job);
  job.precision.fp8_scaling = Float8Scaling::kBlockwise;
  const std::string text = Explain(job);
  EXPECT_TRUE(absl::StrContains(Flat(text), "Weights are gathered in the compute dtype")) << text;
  EXPECT_FALSE(absl::StrContains(Row(text, "What matmuls in FP8 change", "FP8"), "too large"));
  // Three layers, each with inputs of 32, 32, 32 and 48 columns.
  EXPECT_EQ(activations(job) - tensorwise, 3 * 4 * (32 + 32 + 32 + 48) - 3 * 4 * 4);
}

TEST(ExplainBytes, AModelThatPredictsValuesHasNoLogits) {
  Job job = SmallMlpJob();
  job.batch.micro_batch = 100;
  job.batch.global_batch = 500;
  // Its only unit is the last one, so the peak is that of the loss.
  const auto build = [](const GraphOptions& options) {
    GraphBuilder b(options);
    const GroupId group = b.AddGroup("only");
    b.BeginUnit("only");
    MeanSquaredError(b, Linear(b, Features(b, 3), b.AddParameter(group, "weight", {50, 3}, {}), std::nullopt, "out"));
    b.EndLastUnit();
    return b.Finish();
  };
  job.model = CustomModel{.name = "values", .digest = "1", .build = build};
  const std::string text = Flat(Explain(job));
  const int64_t targets = job.batch.micro_batch * job.batch.sequence_length;
  EXPECT_TRUE(
      absl::StrContains(text, absl::StrCat("predictions and losses of the ", targets, " targets of a micro-batch")))
      << text;
  EXPECT_FALSE(absl::StrContains(text, "logits")) << text;
}

TEST(ExplainBytes, CategoriesAddUpToThePeak) {
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
TEST(ExplainBytes, AnOptimizerWithoutStatesKeepsOnlyItsCount) {
  Job job = Named(Accumulation::kSharded);
  job.optimizer.kind = OptimizerKind::kSgd;
  job.optimizer.momentum = 0.9;
  const std::string with = Row(Explain(job), "Where every byte goes", "optimizer state");
  EXPECT_TRUE(absl::EndsWith(with, " SGD's momentum (f32), of this rank's 1/5")) << with;
  job.optimizer.momentum = 0;
  const std::string without = Row(Explain(job), "Where every byte goes", "optimizer state");
  EXPECT_TRUE(absl::EndsWith(without, " the count of updates: SGD keeps nothing else")) << without;
}

TEST(ExplainBytes, NamesTheOptimizersThatUpdateParameters) {
  Job job = Named(Accumulation::kSharded);
  job.optimizer.groups = {{.parameters = {"head*"}, .kind = OptimizerKind::kSgd},
                          {.parameters = {"*"}, .kind = OptimizerKind::kLion}};
  const std::string text = Explain(job);
  const std::string row = Row(text, "Where every byte goes", "optimizer state");
  EXPECT_TRUE(absl::EndsWith(row,
                             " SGD's momentum (f32) of optimizer.groups[0]; Lion's m (f32) of "
                             "optimizer.groups[1], of this rank's 1/5"))
      << row;
  EXPECT_TRUE(absl::StrContains(Flat(text), "While the update of SGD and Lion runs, ")) << text;
}

// Regression: beside frozen parameters, state of those that train was said to be of all.
TEST(ExplainBytes, StateIsOfTheParametersThatTrain) {
  Job job = Named(Accumulation::kNoSync);
  job.sharding.strategy = Strategy::kDdp;
  const std::string title = "Where every byte goes";
  EXPECT_TRUE(absl::EndsWith(Row(Explain(job), title, "optimizer state"), ", of all parameters"));
  job.optimizer.train_only = {"blocks.0.*"};
  const std::string text = Explain(job);
  EXPECT_TRUE(absl::EndsWith(Row(text, title, "optimizer state"), ", of all parameters that train")) << text;
  EXPECT_TRUE(absl::EndsWith(Row(text, title, "frozen parameters"), " all on every rank")) << text;
}

}  // namespace
}  // namespace shale
