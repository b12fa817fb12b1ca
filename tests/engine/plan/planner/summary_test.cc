#include "engine/plan/planner/summary.h"

#include <limits>

#include "engine/compile/model/model.h"
#include "engine/plan/planner/job_plan.h"
#include "gtest/gtest.h"
#include "tests/engine/plan/planner/planner_jobs.h"

namespace shale {
namespace {

ModelGraph SummarizedGraph(const Job& job) {
  absl::StatusOr<ModelGraph> graph = BuildModel(job.model, GraphOptionsFor(job, GraphMode::kTraining));
  EXPECT_TRUE(graph.ok()) << graph.status();
  return *std::move(graph);
}

FlopsSummary Flops(const Job& job, CheckpointingPreset preset, Accumulation accumulation = Accumulation::kSharded) {
  StepOptions options = StepOptionsFor(job);
  options.accumulation = accumulation;
  options.activations.preset = preset;
  return SummarizeFlops(CompileStep(SummarizedGraph(job), options, ScratchOnlyOps())->program);
}

// In SmallDecoderJob, one rank runs 4 micro-batches of 2 sequences of 7 tokens.
constexpr double kTokens = 4 * 2 * 7;
constexpr double kC = 12, kH = 2, kG = 1, kD = 6, kF = 20, kV = 50, kL = 3, kS = 7;
constexpr double kQkv = kC * (kH + 2 * kG) * kD, kProjection = kH * kD * kC, kUp = kC * 2 * kF, kDown = kF * kC;
// Causal: query i sees i + 1 keys. Two matmuls, q k^T and p v, with two operations per multiply-add.
constexpr double kAttentionForward = 4 * kH * kD * (kS + 1) / 2;

TEST(Flops, FollowFromTheShapes) {
  const FlopsSummary f = Flops(SmallDecoderJob(false), CheckpointingPreset::kNone);
  const double matmuls = 2 * kTokens * (kL * (kQkv + kProjection + kUp + kDown) + kV * kC);
  EXPECT_DOUBLE_EQ(f.forward, matmuls + kTokens * kL * kAttentionForward);
  // Backward has two matmuls for each one of forward. In attention it computes the scores again and has four more,
  // which makes five for the two of forward.
  EXPECT_DOUBLE_EQ(f.backward, 2 * matmuls + kTokens * kL * 2.5 * kAttentionForward);
  EXPECT_EQ(f.recompute, 0);
}

TEST(Flops, PresetBlockRunsABlockAgainUpToWhatBackwardReads) {
  // The last matmul of a block only feeds an addition, so backward does not read its result.
  const double again = kTokens * kL * (2 * (kQkv + kProjection + kUp) + kAttentionForward);
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
    const FlopsSummary f = Flops(SmallDecoderJob(false), CheckpointingPreset::kBlock, accumulation);
    EXPECT_DOUBLE_EQ(f.recompute, again) << ToString(accumulation);
    const FlopsSummary keep = Flops(SmallDecoderJob(false), CheckpointingPreset::kNone);
    EXPECT_DOUBLE_EQ(f.forward, keep.forward);
    EXPECT_DOUBLE_EQ(f.backward, keep.backward);
  }
}

TEST(Flops, SegmentsRunAllOfABlockAgainUnlessItIsTheirLast) {
  const double block = kTokens * (2 * (kQkv + kProjection + kUp + kDown) + kAttentionForward);
  const double in_backward = block - kTokens * 2 * kDown;  // Up to what backward reads.
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kLayered}) {
    for (CheckpointingPreset preset : {CheckpointingPreset::kNone, CheckpointingPreset::kBlock}) {
      StepOptions options = StepOptionsFor(SmallDecoderJob(false));
      options.accumulation = accumulation;
      options.activations = {.preset = preset, .segment_blocks = 3};
      const FlopsSummary f =
          SummarizeFlops(CompileStep(SummarizedGraph(SmallDecoderJob(false)), options, ScratchOnlyOps())->program);
      // Two blocks run forward again. NONE keeps their values; BLOCK recomputes them once more in backward. The last
      // block recomputes in its backward.
      const double again = 2 * block + in_backward + (preset == CheckpointingPreset::kBlock ? 2 * in_backward : 0);
      EXPECT_DOUBLE_EQ(f.recompute, again) << ToString(accumulation) << " " << ToString(preset);
      const FlopsSummary keep = Flops(SmallDecoderJob(false), CheckpointingPreset::kNone);
      EXPECT_DOUBLE_EQ(f.forward, keep.forward);
      EXPECT_DOUBLE_EQ(f.backward, keep.backward);
    }
  }
}

TEST(Flops, PresetCheapRunsNoMatmulAgain) {
  EXPECT_EQ(Flops(SmallDecoderJob(false), CheckpointingPreset::kCheap).recompute, 0);
}

TEST(ModelFlopsPerToken, LeavesOutTablesThatAreOnlyLookedUp) {
  Job job = SmallDecoderJob(false);
  // A block has four matmuls and two norms. After the blocks come the final norm and the head.
  const double block = kQkv + kProjection + kUp + kDown + 2 * kC;
  const double expected = 6 * (kL * block + kC + kV * kC) + 6 * kL * kH * kD * kS;
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(job, SummarizedGraph(job)), expected);
  // A tied table is also the head.
  job = SmallDecoderJob(true);
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(job, SummarizedGraph(job)), expected);
}

// Each linear layer of two blocks and the head takes 2 FLOPs per weight forward, 2 for the gradient of a weight that
// trains, and 2 for that of its input if that needs one.
TEST(ModelFlopsPerToken, CountsOnlyWhatFrozenParametersLeave) {
  Job job = SmallDecoderJob(false);
  const auto flops = [&](std::vector<std::string> train_only) {
    job.optimizer.train_only = std::move(train_only);
    return ModelFlopsPerToken(job, SummarizedGraph(job));
  };
  const double block = kQkv + kProjection + kUp + kDown, head = flops({"head.weight"});
  const double norm = flops({"final_norm.weight"});
  EXPECT_DOUBLE_EQ(norm, head);  // One gradient of the head's matmul either way.
  EXPECT_DOUBLE_EQ(flops({"final_norm.weight", "head.weight"}) - head, 2 * kV * kC);
  EXPECT_DOUBLE_EQ(flops({"blocks.2.ffn.down.weight"}) - norm, 2 * kDown);
  EXPECT_DOUBLE_EQ(flops({"blocks.2.*"}) - norm, 4 * block + 2 * kAttentionForward);
  EXPECT_DOUBLE_EQ(flops({"blocks.1.*"}) - norm, 6 * block + 4 * kAttentionForward);

  const ModelGraph graph = SummarizedGraph(job);
  EXPECT_EQ(CountTrainedParameters(graph), static_cast<int64_t>(block + 2 * kC));
  EXPECT_EQ(CountParameters(graph), static_cast<int64_t>(kL * (block + 2 * kC) + kC + 2 * kV * kC));
}

// The linear layers of blocks multiply in fp8. With frozen ones, so do the gradients that are left.
TEST(Float8FlopsPerToken, AreThoseOfTheLinearLayersOfBlocks) {
  Job job = SmallFloat8Job();
  const double qkv = 32 * (2 + 2) * 16, projection = 32 * 32, up = 32 * 2 * 48, down = 48 * 32;
  EXPECT_DOUBLE_EQ(Float8FlopsPerToken(SummarizedGraph(job)), 6 * 3 * (qkv + projection + up + down));
  job.optimizer.train_only = {"blocks.2.ffn.down.weight"};
  EXPECT_DOUBLE_EQ(Float8FlopsPerToken(SummarizedGraph(job)), 2 * 3 * (qkv + projection + up + down) + 2 * down);
  job.precision.matmuls = MatMulPrecision::kAsComputed;
  EXPECT_EQ(Float8FlopsPerToken(SummarizedGraph(job)), 0);
}

TEST(ModelFlopsPerToken, IsThatOfGpt2) {
  Job job = SmallDecoderJob(true);
  DecoderConfig gpt2;
  gpt2.vocabulary = 50257;
  gpt2.width = 768;
  gpt2.layers = gpt2.heads = gpt2.kv_heads = 12;
  gpt2.head_width = 64;
  gpt2.hidden = 3072;
  gpt2.max_positions = 1024;
  gpt2.norm = NormKind::kLayerNorm;
  gpt2.position = PositionKind::kLearned;
  gpt2.activation = Activation::kGeluTanh;
  gpt2.tied_head = gpt2.qkv_bias = gpt2.linear_bias = true;
  job.model = gpt2;
  job.batch.sequence_length = 1024;
  const ModelGraph graph = SummarizedGraph(job);
  EXPECT_EQ(CountParameters(graph), 124439808);
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(job, graph), 6.0 * (124439808 - 1024 * 768) + 6.0 * 12 * 768 * 1024);
}

TEST(ModelFlopsPerToken, AWindowShortensAttention) {
  Job job = SmallDecoderJob(false);
  const double causal = ModelFlopsPerToken(job, SummarizedGraph(job));
  auto& model = std::get<DecoderConfig>(job.model);
  model.attention_window = 7;
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(job, SummarizedGraph(job)), causal);
  model.attention_window = 3;
  // With the window, a query sees 3 - 9 / 14 keys on average, instead of 3.5.
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(job, SummarizedGraph(job)), causal - 12 * kL * kH * kD * (3.5 - (3 - 9.0 / 14)));
  model.layer_pattern = "FW";  // One of three layers.
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(job, SummarizedGraph(job)), causal - 12 * kH * kD * (3.5 - (3 - 9.0 / 14)));
}

// What a run counts for a sequence of documents is their sum, and for a sequence that is one document it is what the
// plan counts, with a window and with frozen parameters too.
TEST(ModelFlopsPerToken, ADocumentAsLongAsASequenceHasTheAttentionOfThePlan) {
  Job job = SmallDecoderJob(false);
  const auto attention = [&](int64_t length) { return DocumentAttentionFlops(job, SummarizedGraph(job), length); };
  const double parameters = ModelFlopsPerToken(job, SummarizedGraph(job)) - attention(kS) / kS;
  EXPECT_DOUBLE_EQ(attention(5), 12 * kL * kH * kD * 5 * 2.5);
  std::get<DecoderConfig>(job.model).attention_window = 3;
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken(job, SummarizedGraph(job)), parameters + attention(kS) / kS);
  EXPECT_DOUBLE_EQ(attention(5), 12 * kL * kH * kD * (0.5 + 1.5 + 2.5 + 3 + 3));
  // One block trains. Its attention counts forward and backward, and that of the others forward. A token counts itself
  // whole here, as the kernels compute it.
  job.optimizer.train_only = {"blocks.2.*"};
  EXPECT_DOUBLE_EQ(attention(5), (3 + (kL - 1)) * 4 * kH * kD * (1 + 2 + 3 + 3 + 3));
}

TEST(Summaries, StopAtTheLargestNumberInsteadOfWrappingAround) {
  StepProgram program;
  const Tensor full = Tensor::Contiguous(DType::kFloat32, {int64_t{1} << 58});
  program.instructions.resize(1);
  program.instructions[0].action = Collective{.kind = CollectiveKind::kAllGather, .local = full, .full = full};
  program.loops = {{0, 1, int64_t{1} << 40}};
  const CommunicationSummary c = SummarizeCommunication(program, {.shard = 1 << 20});
  EXPECT_EQ(c.gathers, int64_t{1} << 40);
  EXPECT_EQ(c.gathered_bytes, std::numeric_limits<int64_t>::max());
  EXPECT_GT(c.sent_bytes, std::numeric_limits<int64_t>::max() / 2);
}

}  // namespace
}  // namespace shale
