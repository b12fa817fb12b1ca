// The laws of matmuls in fp8 whose tiles and blocks have scales of their own (GraphOptions::float8_blockwise).
//
// W ranks, K micro-batches, T tokens of a micro-batch, C width, F inner width.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/compile/program/program.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/matmul.h"
#include "tests/engine/float8_law_support.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/law_support.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

// A decoder whose widths are more than one block, and no whole number of blocks.
DecoderConfig BlockwiseDecoder() {
  DecoderConfig c = Float8Decoder();
  c.layers = 2;
  c.width = 144;
  c.hidden = 160;
  return c;
}

RunOptions BlockwiseOptions(DType gradients = DType::kFloat8E4M3) {
  RunOptions options;
  options.model = BlockwiseDecoder();
  options.dtype = DType::kBFloat16;
  options.float8_gradients = gradients;
  options.float8_blockwise = true;
  return options;
}

Tokens BlockwiseBatch(int64_t sequences) {
  return RandomTokens(sequences, kFloat8Length, BlockwiseDecoder().vocabulary, /*seed=*/73);
}

template <class Kind>
int CountOps(const StepProgram& program) {
  int count = 0;
  ForEachOp<Kind>(program, [&](const Kind&, const Instruction&) { ++count; });
  return count;
}

void ExpectBitsOf(const RunResult& result, const RunResult& wanted, const std::string& what) {
  EXPECT_EQ(result.losses, wanted.losses) << what;
  EXPECT_TRUE(result.gradients == wanted.gradients) << what;
  EXPECT_TRUE(result.weights == wanted.weights) << what;
  EXPECT_EQ(result.measured_peak_bytes, result.plan.peak_bytes) << what;
}

// Scales are those of parts of whole weights, whatever ranks have of them, and of the inputs of a micro-batch.
TEST(Float8BlockwiseLaws, EveryStrategyAndNumberOfRanksAgreesWithOneRank) {
  for (const DType gradients : {DType::kFloat8E4M3, DType::kFloat8E5M2}) {
    if (gradients == DType::kFloat8E5M2 && !TestsEveryCombination()) continue;
    ExpectRanksAgree(BlockwiseOptions(gradients), BlockwiseBatch(5), [](const std::string&) { return true; });
  }
}

TEST(Float8BlockwiseLaws, SchedulesAndCheckpointingChangeNoBits) {
  RunOptions options = BlockwiseOptions();
  options.steps = 2;
  ExpectSchedulesAgree(options, BlockwiseBatch(2), /*most_blocks=*/2);
}

TEST(Float8BlockwiseLaws, QuantizingWeightsOnceChangesNoBits) {
  ExpectQuantizingOnceAgrees(BlockwiseOptions(), BlockwiseBatch(7), BlockwiseDecoder().layers);
}

TEST(Float8BlockwiseLaws, ComputingMatricesWhereTheyAreQuantizedChangesNoBits) {
  RunOptions options = BlockwiseOptions();
  ExpectSourcesChangeNoBits(options, BlockwiseBatch(5));
  if (!TestsEveryCombination()) return;
  DecoderConfig model = BlockwiseDecoder();
  model.norm = NormKind::kLayerNorm;
  model.activation = Activation::kGeluTanh;
  options.model = model;
  options.position_ids = true;
  ExpectSourcesChangeNoBits(options, BlockwiseBatch(3));
}

// As with one scale for each matrix, but nothing reads a matrix for its maximum: of the gate, 4 F numbers of a token
// become 2 F, and of its gradient 7 F become 3 F. RoPE saves as much as there.
TEST(Float8BlockwiseLaws, ComputingMatricesWhereTheyAreQuantizedMovesFewerBytes) {
  RunOptions options = BlockwiseOptions();
  const int64_t with = BytesMoved(MustRun(options, BlockwiseBatch(1)).step.program);
  options.float8_sources = Float8Sources::kNotUsed;
  const int64_t without = BytesMoved(MustRun(options, BlockwiseBatch(1)).step.program);
  const int64_t T = kFloat8Length, C = 144, F = 160, Q = (4 + 2) * 8;
  EXPECT_EQ(without - with, BlockwiseDecoder().layers * (2 * (2 * T * C - 4 * T) + 2 * T * (2 + 4) * F + 4 * T * Q));
}

// Blocks cross the bounds of shards. So ranks gather the weights as they are, in bf16, and quantize them where they use
// them, with the bits of ZERO1, where each rank has whole weights.
TEST(Float8BlockwiseLaws, WeightsAreGatheredInTheComputeDtype) {
  for (const int64_t ranks : {2, 3}) {
    for (const Accumulation accumulation : {Accumulation::kNoSync, Accumulation::kLayered}) {
      RunOptions options = BlockwiseOptions();
      options.steps = 2;
      options.step.mesh = {.shard = ranks};
      options.step.accumulation = accumulation;
      options.step.strategy = Strategy::kZero1;
      const RunResult whole = MustRun(options, BlockwiseBatch(5));
      options.step.strategy = Strategy::kFullShard;
      const RunResult sharded = MustRun(options, BlockwiseBatch(5));
      ExpectBitsOf(sharded, whole, absl::StrCat(ranks, " ", ToString(accumulation)));
      for (const Instruction& instruction : sharded.step.program.instructions) {
        const auto* gather = std::get_if<Collective>(&instruction.action);
        if (gather == nullptr || gather->kind != CollectiveKind::kAllGather || instruction.unit < 0) continue;
        EXPECT_EQ(gather->full.dtype, DType::kBFloat16);
      }
      EXPECT_EQ(CountOps<QuantizeShard>(sharded.step.program), 0);
    }
  }
}

// Codes and scales may be kept, offloaded or computed again each by themselves.
TEST(Float8BlockwiseLaws, PatternsAndOffloadChangeNoBits) {
  RunOptions options = BlockwiseOptions();
  options.step.mesh = {.shard = 2};
  const Tokens tokens = BlockwiseBatch(4);
  const RunResult plain = MustRun(options, tokens);
  for (const char* pattern : {"*.fp8.transposed", "*.scales", "*.fp8.transposed.scales", "*.input.*", "*"}) {
    for (const bool offload : {false, true}) {
      options.step.activations = {};
      (offload ? options.step.activations.offload : options.step.activations.patterns) = {pattern};
      ExpectBitsOf(MustRun(options, tokens), plain, absl::StrCat(pattern, " ", offload));
    }
  }
}

// Nothing is read for its maximum alone. Backward keeps an input in fp8 with the scales along its tokens.
TEST(Float8BlockwiseLaws, NoMatrixIsReadForItsMaximumAndInputsAreKeptWithTheirScales) {
  const RunResult result = MustRun(BlockwiseOptions(), BlockwiseBatch(1));
  EXPECT_EQ(CountOps<AbsMax>(result.step.program), 0);
  int matmuls = 0;
  ForEachOp<MatMul>(result.step.program, [&](const MatMul& op, const Instruction&) {
    if (!op.is_float8()) return;
    ++matmuls;
    EXPECT_NE(op.scales, Float8Scales::kOne);
    EXPECT_FALSE(op.fast_accumulation);
  });
  EXPECT_EQ(matmuls, 3 * 4 * BlockwiseDecoder().layers);
  std::map<std::string, int64_t> kept;
  for (const Buffer& buffer : result.step.program.buffers) {
    if (buffer.category == BufferCategory::kActivations) kept[buffer.name] = buffer.slot_bytes;
  }
  const int64_t T = kFloat8Length, C = 144, F = 160;
  EXPECT_EQ(kept.at("blocks.0.attention.qkv.input.fp8.transposed"), T * C);
  EXPECT_EQ(kept.at("blocks.0.attention.qkv.input.fp8.transposed.scales"), 4 * C);
  EXPECT_EQ(kept.at("blocks.0.ffn.projected.input.fp8.transposed.scales"), 4 * F);
  for (const auto& [name, bytes] : kept) {
    EXPECT_FALSE(absl::EndsWith(name, ".fp8") || absl::EndsWith(name, ".fp8.scales")) << name;
    EXPECT_FALSE(absl::StrContains(name, ".weight.")) << name;
  }
}

}  // namespace
}  // namespace shale::testing
