// The laws of matmuls in fp8 whose tiles and blocks have scales of their own (GraphOptions::float8_blockwise).
//
// W ranks, K micro-batches, T tokens of a micro-batch, C width, F inner width.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <vector>

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
  ExpectSourcesChangeNoBits(BlockwiseOptions(), BlockwiseBatch(5));
}

TEST(Float8BlockwiseLaws, ComputingMatricesWithActivationCheckpointingChangesNoBits) {
  RunOptions options = BlockwiseOptions();
  ExpectSourcesChangeNoBitsWithCheckpointing(options, BlockwiseBatch(5));
  if (!TestsEveryCombination()) return;
  DecoderConfig model = BlockwiseDecoder();
  model.norm = NormKind::kLayerNorm;
  model.activation = Activation::kGeluTanh;
  options.model = model;
  options.position_ids = true;
  ExpectSourcesChangeNoBits(options, BlockwiseBatch(3));
  ExpectSourcesChangeNoBitsWithCheckpointing(options, BlockwiseBatch(3));
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

// Forward, and gradients of inputs, read tiles that lie within a token, and blocks of weights. So their bits do not
// depend on how a batch is divided into micro-batches; with one scale for each matrix they do. Only the gradient of a
// weight that multiplies in fp8 reads transposed matrices, whose tiles are of up to 128 tokens of a micro-batch. If
// these tiles are the same, nothing but the order of sums differs. If they are not, both of its operands may round to
// another neighbor. A rounding to e4m3 is off by up to 2^-4 of the number, evenly spread: 0.036 of it in the mean
// square. Signs are random, and nothing of it comes through other layers. So the gradient is off by sqrt(2) 0.036 =
// 0.051 of its norm, and by sqrt(2) of that if both sides of a comparison are rounded: 0.072, however many blocks the
// model has. A norm over C values spreads by 1 / sqrt(2 C) of that, of which three times are allowed.
TEST(Float8BlockwiseLaws, OnlyGradientsOfWeightsDependOnHowABatchIsDivided) {
  // As in tests/engine/laws_test.cc: sums in another order. CUDA's libraries may choose another kernel for another
  // number of tokens, so that activations round otherwise.
  constexpr double kReorderedParts = 2e-5;
  const double same = TestsTheCudaBackend() ? 1e-2 : kReorderedParts;
  const double rounded = 0.072 * (1 + 3 / std::sqrt(2.0 * BlockwiseDecoder().width));
  constexpr int64_t kSequences = 16, kOfTile = kFloat8Block / kFloat8Length;
  const Tokens tokens = BlockwiseBatch(kSequences);
  RunOptions options = BlockwiseOptions();
  options.micro_batch = kSequences;
  const RunResult one = MustRun(options, tokens);
  ASSERT_FALSE(one.losses.empty());
  for (const int64_t micro_batch : {kOfTile, int64_t{1}}) {
    SCOPED_TRACE(micro_batch);
    options.micro_batch = micro_batch;
    const RunResult several = MustRun(options, tokens);
    ASSERT_FALSE(several.losses.empty());
    EXPECT_NEAR(several.losses[0], one.losses[0], same * one.losses[0]);
    for (const bool float8 : {true, false}) {
      const auto some = [float8](std::map<std::string, std::vector<float>> gradients) {
        std::erase_if(gradients, [float8](const auto& gradient) {
          const bool matrix = absl::StartsWith(gradient.first, "blocks.") && !absl::StrContains(gradient.first, "norm");
          return matrix != float8;
        });
        return gradients;
      };
      ASSERT_FALSE(some(one.gradients).empty());
      std::string worst;
      const double distance = LargestDistance(some(several.gradients), some(one.gradients), &worst);
      const bool same_tiles = micro_batch == kOfTile;
      EXPECT_LE(distance, float8 && !same_tiles ? rounded : same) << worst;
      if (float8 && !same_tiles) {
        EXPECT_GT(distance, kReorderedParts);
      }
    }
  }
}

// Sets a value of a weight of the last block.
RunOptions WithBlockwiseWeight(float value) {
  RunOptions options = BlockwiseOptions();
  options.edit_weights = [value](const std::string& name, std::vector<float>& values) {
    if (name == "blocks.1.ffn.down.weight") values[5] = value;
  };
  return options;
}

// Only the block that has the weight gets a factor of 0 and an infinite scale. That suffices: a product with it is not
// a number, as without fp8.
TEST(Float8BlockwiseLaws, AnInfiniteWeightIsReportedAndUpdatesNothing) {
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    RunOptions options = WithBlockwiseWeight(value);
    options.step.mesh = {.shard = 2};
    const RunResult result = MustRun(options, BlockwiseBatch(2));
    ASSERT_FALSE(result.losses.empty());
    EXPECT_TRUE(result.non_finite);
    options.steps = 0;
    const RunResult before = MustRun(options, BlockwiseBatch(2));
    for (const char* name : {"blocks.0.ffn.down.weight", "blocks.1.attention.qkv.weight"}) {
      EXPECT_EQ(result.weights.at(name), before.weights.at(name)) << name;
    }
  }
}

// One large weight takes the whole range of its scale, and others round to zero beside it. The down-projection has
// [144, 160] weights. With one scale for them all, none but that of feature 5 has a gradient. Of blocks only the first
// is lost, and each feature has weights in another one.
TEST(Float8BlockwiseLaws, AnOutlierTakesTheRangeOfItsBlockAlone) {
  const int64_t C = 144, F = 160;
  for (const bool blockwise : {true, false}) {
    SCOPED_TRACE(blockwise);
    RunOptions options = WithBlockwiseWeight(1e6f);
    options.float8_blockwise = blockwise;
    const RunResult result = MustRun(options, BlockwiseBatch(2));
    ASSERT_FALSE(result.losses.empty());
    EXPECT_TRUE(std::isfinite(result.losses[0]));
    EXPECT_FALSE(result.non_finite);
    const std::vector<float>& gradient = result.gradients.at("blocks.1.ffn.gate_up.weight");
    ASSERT_EQ(static_cast<int64_t>(gradient.size()), 2 * F * C);
    int64_t learn = 0;  // Features whose gate has a gradient.
    for (int64_t f = 0; f < F; ++f) {
      const auto row = gradient.begin() + f * C;
      const bool learns = std::any_of(row, row + C, [](float x) { return x != 0; });
      learn += learns;
      if (f == 5) {
        EXPECT_TRUE(learns);
      }
    }
    EXPECT_EQ(learn, blockwise ? F : 1);
  }
}

}  // namespace
}  // namespace shale::testing
