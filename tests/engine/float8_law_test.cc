// The laws of matmuls in fp8 ([Note: fp8 matmuls] in engine/compile/graph/graph.h).
//
// W ranks, K micro-batches, T tokens of a micro-batch, C width.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/compile/program/program.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/rope.h"
#include "tests/engine/float8_law_support.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/law_support.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

constexpr double kReordered = 2e-5;  // As in tests/engine/laws_test.cc: sums in another order.

RunOptions Float8Options(DType gradients = DType::kFloat8E5M2) {
  RunOptions options;
  options.model = Float8Decoder();
  options.dtype = DType::kBFloat16;
  options.float8_gradients = gradients;
  return options;
}

Tokens Batch(int64_t sequences) {
  return RandomTokens(sequences, kFloat8Length, Float8Decoder().vocabulary, /*seed=*/71);
}

// Returns the bytes of the activations that wait for backward, by name.
std::map<std::string, int64_t> KeptBytes(const RunResult& result) {
  std::map<std::string, int64_t> kept;
  for (const Buffer& buffer : result.step.program.buffers) {
    if (buffer.category == BufferCategory::kActivations) kept[buffer.name] = buffer.slot_bytes;
  }
  return kept;
}

// Scales are those of whole matrices: of weights, whatever ranks have of them, and of the inputs of a micro-batch,
// which do not depend on W.
TEST(Float8Laws, EveryStrategyAndNumberOfRanksAgreesWithOneRank) {
  for (const DType gradients : {DType::kFloat8E5M2, DType::kFloat8E4M3}) {
    if (gradients == DType::kFloat8E4M3 && !TestsEveryCombination()) continue;
    // Of seven sequences, three ranks lack two and four lack one.
    ExpectRanksAgree(Float8Options(gradients), Batch(7), [](const std::string&) { return true; });
  }
}

TEST(Float8Laws, SchedulesAndCheckpointingChangeNoBits) {
  RunOptions options = Float8Options();
  options.steps = 2;
  ExpectSchedulesAgree(options, Batch(2), /*most_blocks=*/3);
  if (!TestsEveryCombination()) return;
  DecoderConfig model = GemmaLike(Float8Decoder());
  model.tied_head = false;  // LAYERED adds up a tied gradient in another order.
  options.model = model;
  options.dtype = DType::kFloat16;
  options.step.loss_scaling = LossScaling{.init_scale = 1024};
  ExpectSchedulesAgree(options, Batch(2), /*most_blocks=*/1);
}

// Where weights are gathered in fp8, ranks quantize their shards in place of this.
TEST(Float8Laws, QuantizingWeightsOnceChangesNoBits) {
  ExpectQuantizingOnceAgrees(Float8Options(), Batch(7), Float8Decoder().layers);
}

// Expects that a step gathers one byte for each weight that multiplies in fp8, and quantizes none where it is used.
void ExpectGathersCodes(const RunResult& result) {
  const StepProgram& program = result.step.program;
  std::map<DType, int64_t> gathers;
  for (const Instruction& instruction : program.instructions) {
    const auto* gather = std::get_if<Collective>(&instruction.action);
    if (gather == nullptr || gather->kind != CollectiveKind::kAllGather || instruction.unit < 0) continue;
    ++gathers[gather->full.dtype];
    const bool float8 = absl::StrContains(program.buffers[gather->full.where.symbol].name, ".fp8.");
    EXPECT_EQ(gather->full.dtype, float8 ? DType::kFloat8E4M3 : DType::kBFloat16);
  }
  EXPECT_GE(gathers[DType::kFloat8E4M3], Float8Decoder().layers);
  EXPECT_EQ(TimesQuantized(program), 0);
  ForEachOp<AbsMax>(program, [&](const AbsMax& op, const Instruction&) {
    EXPECT_FALSE(absl::StrContains(program.buffers[op.maximum_1.where.symbol].name, ".weight."));
  });
  int stages = 0;
  ForEachOp<QuantizeShard>(program, [&](const QuantizeShard&, const Instruction& at) {
    EXPECT_EQ(at.micro_batch, -1);
    ++stages;
  });
  EXPECT_EQ(stages, 2 * Float8Decoder().layers);
}

// ZERO1 quantizes whole matrices, and adds up gradients in the same order.
TEST(Float8Laws, GatheringWeightsInFp8ChangesNoBits) {
  struct Case {
    int64_t ranks;
    Accumulation accumulation;
    int64_t sequences;  // With as many as ranks there is one micro-batch.
    bool reshard = true;
    int64_t prefetch = 1;
    CheckpointingPreset preset = CheckpointingPreset::kNone;
    int64_t segment = 1;
    bool update_on_host = false;
    bool adapts = false;  // The base is frozen, and travels in fp8 too.
  };
  const Case cases[] = {{2, Accumulation::kNoSync, 7},
                        {3, Accumulation::kNoSync, 7},
                        {3, Accumulation::kLayered, 7},
                        {2, Accumulation::kSharded, 2},
                        {3, Accumulation::kSharded, 3, /*reshard=*/false},
                        {2, Accumulation::kNoSync, 5, true, /*prefetch=*/0},
                        {3, Accumulation::kNoSync, 5, true, /*prefetch=*/3, CheckpointingPreset::kBlock, /*segment=*/2},
                        {2, Accumulation::kLayered, 5, false, 2, CheckpointingPreset::kCheap},
                        {3, Accumulation::kNoSync, 4, true, 1, CheckpointingPreset::kNone, 1, /*update_on_host=*/true},
                        {3, Accumulation::kNoSync, 4, true, 1, CheckpointingPreset::kNone, 1, false, /*adapts=*/true}};
  for (const Case& c : cases) {
    SCOPED_TRACE(&c - cases);
    RunOptions options = Float8Options();
    options.steps = 2;
    DecoderConfig model = Float8Decoder();
    if (c.adapts) model.adapter = AdapterConfig{.rank = 2, .alpha = 4, .targets = {"*"}};
    options.model = model;
    options.step.mesh = {.shard = c.ranks};
    options.step.accumulation = c.accumulation == Accumulation::kSharded ? Accumulation::kNoSync : c.accumulation;
    options.step.strategy = Strategy::kZero1;
    const Tokens tokens = Batch(c.sequences);
    const RunResult whole = MustRun(options, tokens);
    options.step.strategy = Strategy::kFullShard;
    options.step.accumulation = c.accumulation;
    options.step.reshard_after_forward = c.reshard;
    options.step.prefetch = c.prefetch;
    options.step.activations.preset = c.preset;
    options.step.activations.segment_blocks = c.segment;
    options.step.update_device = c.update_on_host ? UpdateDevice::kHost : UpdateDevice::kSame;
    const RunResult sharded = MustRun(options, tokens);
    EXPECT_EQ(sharded.losses, whole.losses);
    EXPECT_TRUE(sharded.gradients == whole.gradients);
    EXPECT_TRUE(sharded.weights == whole.weights);
    EXPECT_EQ(sharded.measured_peak_bytes, sharded.plan.peak_bytes);
    ExpectGathersCodes(sharded);
  }
}

TEST(Float8Laws, PatternsAndOffloadChangeNoBits) {
  RunOptions options = Float8Options();
  options.step.mesh = {.shard = 2};
  const Tokens tokens = Batch(4);
  const RunResult plain = MustRun(options, tokens);
  for (const char* pattern : {"*.fp8.transposed", "*.maximum", "*.scale", "*.input.*", "blocks.1.*", "*"}) {
    for (const bool offload : {false, true}) {
      options.step.activations = {};
      (offload ? options.step.activations.offload : options.step.activations.patterns) = {pattern};
      const RunResult result = MustRun(options, tokens);
      EXPECT_EQ(result.losses, plain.losses) << pattern << offload;
      EXPECT_TRUE(result.gradients == plain.gradients) << pattern << offload;
      EXPECT_EQ(result.measured_peak_bytes, result.plan.peak_bytes) << pattern << offload;
    }
  }
}

void ExpectThreeRanksAgree(RunOptions options, const Tokens& tokens) {
  const RunResult one = MustRun(options, tokens);
  options.step.mesh = {.shard = 3};
  const RunResult three = MustRun(options, tokens);
  ASSERT_FALSE(one.losses.empty() || three.losses.empty());
  std::string worst;
  EXPECT_NEAR(three.losses[0], one.losses[0], kReordered * one.losses[0]);
  EXPECT_LE(LargestDistance(three.gradients, one.gradients, &worst), kReordered) << worst;
  EXPECT_EQ(three.measured_peak_bytes, three.plan.peak_bytes);
}

// The base is quantized from its stored form, and adapters compute in bf16 beside it.
TEST(Float8Laws, AdaptersAndFrozenWeightsObeyThemToo) {
  for (const Storage storage : {Storage::kAsUsed, Storage::kNf4}) {
    for (const bool adapts : {true, false}) {
      if (!TestsEveryCombination() && adapts != (storage == Storage::kNf4)) continue;
      RunOptions options = Float8Options();
      options.frozen_weights = storage;
      DecoderConfig model = Float8Decoder();
      if (adapts) {
        model.adapter = AdapterConfig{.rank = 2, .alpha = 4, .targets = {"*"}};
      } else {
        options.train_only = {"blocks.1.attention.*"};
      }
      options.model = model;
      // Adapters begin with B = 0, where A has no gradient.
      options.edit_weights = [](const std::string& name, std::vector<float>& values) {
        for (size_t i = 0; absl::EndsWith(name, "lora_B.weight") && i < values.size(); ++i) {
          values[i] = 0.05f * static_cast<float>(static_cast<int>(i % 7) - 3);
        }
      };
      const auto trains = [&](const std::string& name) {
        return adapts ? absl::StrContains(name, "lora_") : absl::StartsWith(name, "blocks.1.attention.");
      };
      if (storage == Storage::kAsUsed) {
        ExpectRanksAgree(options, Batch(5), trains);
      } else {
        ExpectThreeRanksAgree(options, Batch(5));  // Weights in 4 bits cannot be read and written back.
      }
      ExpectSchedulesAgree(options, Batch(2), /*most_blocks=*/1);
      int transposed_inputs = 0;
      ForEachOp<QuantizeFloat8>(MustRun(options, Batch(1)).step.program, [&](const QuantizeFloat8& op, const auto& at) {
        transposed_inputs += at.phase == Phase::kForward && op.transposed_CR.present();
      });
      // Only a weight that trains wants its input transposed.
      EXPECT_EQ(transposed_inputs, adapts ? 0 : 2);
    }
  }
}

TEST(Float8Laws, BackwardKeepsTheInputsOfMatmulsInFp8) {
  const int64_t T = kFloat8Length, C = 32, F = 48;
  RunOptions options = Float8Options();
  const std::map<std::string, int64_t> none = KeptBytes(MustRun(options, Batch(1)));
  EXPECT_EQ(none.at("blocks.0.attention.qkv.input.fp8.transposed"), T * C);
  EXPECT_EQ(none.at("blocks.0.attention.projected.input.fp8.transposed"), T * C);
  EXPECT_EQ(none.at("blocks.0.ffn.gate_up.input.fp8.transposed"), T * C);
  EXPECT_EQ(none.at("blocks.0.ffn.projected.input.fp8.transposed"), T * F);
  EXPECT_FALSE(none.contains("blocks.0.attention_norm"));
  EXPECT_FALSE(none.contains("blocks.0.ffn_norm"));
  EXPECT_FALSE(none.contains("blocks.0.ffn.act"));
  EXPECT_EQ(none.at("blocks.0.attention.out"), 2 * T * C);  // The backward of attention reads it.

  // What is cheap is computed again, also its fp8 form; scalars always stay.
  options.step.activations.preset = CheckpointingPreset::kCheap;
  for (const auto& [name, bytes] : KeptBytes(MustRun(options, Batch(1)))) {
    EXPECT_FALSE(absl::StrContains(name, ".fp8")) << name;
  }
  options.step.activations.preset = CheckpointingPreset::kBlock;
  const std::map<std::string, int64_t> block = KeptBytes(MustRun(options, Batch(1)));
  EXPECT_TRUE(block.contains("blocks.0.attention.qkv.weight.maximum"));
  for (const auto& [name, bytes] : block) EXPECT_EQ(bytes, 4) << name;
}

// A matrix is quantized in the forms that are read, and once if two layers read it.
TEST(Float8Laws, NothingIsQuantizedInVain) {
  RunOptions options = Float8Options();
  DecoderConfig model = Float8Decoder();
  model.layers = 1;
  model.parallel_block = true;
  options.model = model;
  for (const CheckpointingPreset preset : {CheckpointingPreset::kNone, CheckpointingPreset::kCheap}) {
    for (const Float8Sources sources : {Float8Sources::kUsed, Float8Sources::kNotUsed}) {
      options.step.activations.preset = preset;
      options.float8_sources = sources;
      std::map<Phase, int> as_it_lies, transposed;
      const RunResult result = MustRun(options, Batch(1));
      ForEachOp<QuantizeFloat8>(result.step.program, [&](const auto& op, const Instruction& at) {
        as_it_lies[at.phase] += op.out_RC.present();
        transposed[at.phase] += op.transposed_CR.present();
      });
      const bool keeps = preset == CheckpointingPreset::kNone;
      // Three inputs, since the norm's serves two layers, and four weights.
      EXPECT_EQ(as_it_lies[Phase::kForward], 7);
      EXPECT_EQ(transposed[Phase::kForward], keeps ? 3 : 0);
      EXPECT_EQ(as_it_lies[Phase::kRecompute], 0);
      EXPECT_EQ(transposed[Phase::kRecompute], keeps ? 0 : 3);
      // Four gradients, in both forms, and four weights.
      EXPECT_EQ(as_it_lies[Phase::kBackward], 4);
      EXPECT_EQ(transposed[Phase::kBackward], 8);
      // The gradient of SwiGLU recomputes what it writes, for the fp8 form of that, if this does not compute it itself.
      ForEachOp<SwiGluForward>(result.step.program, [&](const auto&, const Instruction& at) {
        EXPECT_EQ(sources, Float8Sources::kNotUsed);
        EXPECT_EQ(at.phase, Phase::kForward);
      });
    }
  }
}

// Returns a model of Falcon's family, whose layer norms, GELU and gradients of RoPE are computed where they are
// quantized.
DecoderConfig FalconLike(DecoderConfig model) {
  model.norm = NormKind::kLayerNorm;
  model.activation = Activation::kGeluErf;
  model.parallel_block = true;
  model.kv_heads = 1;
  return model;
}

// Returns jobs of three families, with their batches.
std::vector<std::pair<RunOptions, Tokens>> JobsWithSources() {
  std::vector<std::pair<RunOptions, Tokens>> jobs = {{Float8Options(), Batch(5)}};
  RunOptions options = Float8Options();
  options.model = FalconLike(Float8Decoder());
  options.position_ids = true;
  jobs.emplace_back(options, Batch(3));
  options = Float8Options();
  DecoderConfig model = GemmaLike(Float8Decoder());
  model.tied_head = false;  // LAYERED adds up a tied gradient in another order.
  options.model = model;
  options.dtype = DType::kFloat16;
  options.step.loss_scaling = LossScaling{.init_scale = 1024};
  jobs.emplace_back(options, Batch(3));
  return jobs;
}

TEST(Float8Laws, ComputingMatricesWhereTheyAreQuantizedChangesNoBits) {
  for (const auto& [options, tokens] : JobsWithSources()) ExpectSourcesChangeNoBits(options, tokens);
}

TEST(Float8Laws, ComputingMatricesWithActivationCheckpointingChangesNoBits) {
  const auto expect_no_change = [](const RunOptions& options, const Tokens& tokens) {
    ExpectSourcesChangeNoBits(options, tokens);
    ExpectSourcesChangeNoBitsWithCheckpointing(options, tokens);
  };
  for (const auto& [options, tokens] : JobsWithSources()) ExpectSourcesChangeNoBitsWithCheckpointing(options, tokens);
  if (!TestsEveryCombination()) return;
  RunOptions options = Float8Options();
  DecoderConfig model;
  for (const bool gpt2 : {true, false}) {
    // Like GPT-2 or Qwen 2, whose gradients are read for those of biases.
    model = Float8Decoder();
    model.qkv_bias = true;
    if (gpt2) model.norm = NormKind::kLayerNorm, model.activation = Activation::kGeluTanh;
    if (gpt2) model.position = PositionKind::kLearned, model.linear_bias = true;
    options.model = model;
    expect_no_change(options, Batch(3));
  }
  model = Float8Decoder();
  model.parallel_block = true;
  options.model = model;
  expect_no_change(options, Batch(3));
  // Backward of the first blocks does not read what norms read. An adapter reads the results themselves.
  for (const char* trains : {"blocks.1.attention.*", "blocks.1.ffn.down.*", "blocks.1.*norm*"}) {
    options.train_only = {trains};
    expect_no_change(options, Batch(3));
  }
  options.train_only = {};
  model.adapter = AdapterConfig{.rank = 2, .alpha = 4, .targets = {"down_proj"}};
  options.model = model;
  expect_no_change(options, Batch(3));
}

// With C columns and F inner ones, an op that reads or writes a matrix of T x C in bf16 moves 2 T C bytes. Of each of
// the two norms of a block, y is not written, and instead of it AbsMax and QuantizeFloat8 read what the norm reads. Of
// the gate, y [T, F] is not written, and both read gate_up, which the gate would have read. Of its gradient [T, 2F] the
// same holds for gate_up and d_y. The gradients of queries and keys, Q columns in all, are not read and written by
// RoPE.
TEST(Float8Laws, ComputingMatricesWhereTheyAreQuantizedMovesFewerBytes) {
  const int64_t T = kFloat8Length, C = 32, F = 48, Q = (4 + 2) * 8, blocks = Float8Decoder().layers;
  RunOptions options = Float8Options();
  const StepProgram with = MustRun(options, Batch(1)).step.program;
  options.float8_sources = Float8Sources::kNotUsed;
  const StepProgram without = MustRun(options, Batch(1)).step.program;
  const int64_t norm = 2 * T * C - (2 * 4 * T + 2 * C);  // Both ops read rstd, and one more than before the weight.
  const int64_t gate = 2 * T * ((2 + 1 + 1 + 1) * F - 2 * 2 * F);
  const int64_t gradient = 2 * T * ((3 + 2 + 2 + 2) * F - 2 * 3 * F);
  EXPECT_EQ(BytesMoved(without) - BytesMoved(with), blocks * (2 * norm + gate + gradient + 2 * 2 * T * Q));
  std::map<std::pair<Phase, Float8Source::Kind>, int> sources;
  ForEachOp<QuantizeFloat8>(with, [&](const auto& op, const Instruction& at) {
    ++sources[{at.phase, op.source.kind}];
  });
  EXPECT_EQ((sources[{Phase::kForward, Float8Source::Kind::kNorm}]), 2 * blocks);
  EXPECT_EQ((sources[{Phase::kForward, Float8Source::Kind::kGate}]), blocks);
  EXPECT_EQ((sources[{Phase::kBackward, Float8Source::Kind::kGateGradient}]), blocks);
  EXPECT_EQ((sources[{Phase::kBackward, Float8Source::Kind::kRope}]), blocks);
  ForEachOp<Rope>(with, [](const Rope& op, const auto&) { EXPECT_FALSE(op.inverse) << "rotates a gradient"; });
  ForEachOp<SwiGluForward>(with, [](const auto&, const auto&) { ADD_FAILURE() << "computes a gate for itself"; });
  ForEachOp<SwiGluBackward>(with, [](const auto&, const auto&) { ADD_FAILURE() << "computes a gradient for itself"; });
}

// Of Falcon's norm, y is not written, and AbsMax and QuantizeFloat8 read mean, rstd, weight and bias. Of GELU and of
// its gradient, matrices [T, F] are not written, and both ops read x, and for the gradient d_y as well.
TEST(Float8Laws, ComputingLayerNormsAndGeluWhereTheyAreQuantizedMovesFewerBytes) {
  const int64_t T = kFloat8Length, C = 32, F = 48, Q = (4 + 1) * 8, blocks = Float8Decoder().layers;
  RunOptions options = Float8Options();
  options.model = FalconLike(Float8Decoder());
  const int64_t with = BytesMoved(MustRun(options, Batch(1)).step.program);
  options.float8_sources = Float8Sources::kNotUsed;
  const int64_t without = BytesMoved(MustRun(options, Batch(1)).step.program);
  const int64_t norm = 2 * T * C - (2 * 2 * 4 * T + 2 * 2 * C);
  const int64_t gelu = 2 * T * ((2 + 1 + 1) * F - 2 * F), gradient = 2 * T * ((3 + 1 + 1) * F - 2 * 2 * F);
  EXPECT_EQ(without - with, blocks * (norm + gelu + gradient + 2 * 2 * T * Q));
}

TEST(Float8Laws, OnlyLinearLayersOfBlocksMultiplyInFp8) {
  const RunResult result = MustRun(Float8Options(), Batch(1));
  std::map<std::string, int> float8, others;
  ForEachOp<MatMul>(result.step.program, [&](const MatMul& op, const Instruction& at) {
    ++(op.is_float8() ? float8 : others)[result.step.program.units[at.unit]];
    // Only forward adds up in fewer bits.
    EXPECT_EQ(op.fast_accumulation, op.is_float8() && at.phase == Phase::kForward);
    if (op.is_float8()) {
      EXPECT_EQ(op.a.dtype == DType::kFloat8E5M2, at.phase == Phase::kBackward);
    }
  });
  EXPECT_EQ(float8, (std::map<std::string, int>{{"blocks.0", 12}, {"blocks.1", 12}, {"blocks.2", 12}}));
  EXPECT_EQ(others.size(), 1);
  EXPECT_TRUE(others.contains("head"));
}

// A scale follows the largest magnitude of its matrix, and that of a batch is not that of its micro-batches. So numbers
// may round to another neighbor. A rounding to e4m3 is off by up to 2^-4 of the number, and to e5m2 by 2^-3, evenly
// spread: 0.036 and 0.072 of it in the mean square. Signs are random. A matmul of backward reads one of each, so its
// result is off by sqrt(0.036^2 + 0.072^2) = 0.08 of its norm. What has come through L = 3 blocks, of four matmuls
// each, adds up to sqrt(4 L) 0.08 = 0.28, and to sqrt(2) of that if both sides of a comparison are rounded: 0.39. A
// norm over the C values of the smallest weight spreads by 1 / sqrt(2 C) of that, of which three times are allowed. The
// loss depends on forward alone, and is a mean over tokens whose differences have random signs as well.
TEST(Float8Laws, MicroBatchesAgreeWithOneLargeBatchButForRounding) {
  const double kRounded = 0.39 * (1 + 3 / std::sqrt(2.0 * Float8Decoder().width));
  const Tokens tokens = Batch(4);
  RunOptions options = Float8Options();
  options.micro_batch = 4;
  const RunResult one = MustRun(options, tokens);
  options.micro_batch = 1;
  const RunResult four = MustRun(options, tokens);
  ASSERT_FALSE(one.losses.empty() || four.losses.empty());
  std::string worst;
  const double distance = LargestDistance(four.gradients, one.gradients, &worst);
  EXPECT_GT(distance, 0);
  EXPECT_LE(distance, kRounded) << worst;
  EXPECT_NEAR(four.losses[0], one.losses[0], 0.02 * one.losses[0]);

  // The same of bf16 and fp8.
  options.float8_gradients.reset();
  const RunResult bf16 = MustRun(options, tokens);
  ASSERT_FALSE(bf16.losses.empty());
  EXPECT_NE(four.losses[0], bf16.losses[0]);
  EXPECT_NEAR(four.losses[0], bf16.losses[0], 0.02 * bf16.losses[0]);
  EXPECT_LE(LargestDistance(four.gradients, bf16.gradients, &worst), kRounded) << worst;
}

TEST(Float8Laws, ItTrains) {
  RunOptions options = Float8Options();
  options.steps = TestsEveryCombination() ? 60 : 8;
  const Tokens tokens = Batch(2);
  const RunResult fp8 = MustRun(options, tokens);
  options.float8_gradients.reset();
  const RunResult bf16 = MustRun(options, tokens);
  ASSERT_FALSE(fp8.losses.empty() || bf16.losses.empty());
  EXPECT_LT(fp8.losses.back(), (TestsEveryCombination() ? 0.5 : 1) * fp8.losses.front());
  EXPECT_NEAR(fp8.losses.back(), bf16.losses.back(), 0.1 * bf16.losses.front());
}

// Sets all values of a weight of block 1.
RunOptions WithWeight(float value, bool all) {
  RunOptions options = Float8Options();
  options.edit_weights = [value, all](const std::string& name, std::vector<float>& values) {
    if (name != "blocks.1.ffn.down.weight") return;
    if (all) std::fill(values.begin(), values.end(), value);
    values[5] = value;
  };
  return options;
}

TEST(Float8Laws, AWeightOfZerosMultipliesToZeros) {
  const RunResult result = MustRun(WithWeight(0, /*all=*/true), Batch(2));
  ASSERT_FALSE(result.losses.empty());
  EXPECT_TRUE(std::isfinite(result.losses[0]));
  EXPECT_FALSE(result.non_finite);
  for (const auto& [name, gradient] : result.gradients) {
    EXPECT_TRUE(std::all_of(gradient.begin(), gradient.end(), [](float x) { return std::isfinite(x); })) << name;
  }
}

// The factor of an infinite maximum is 0, and its scale infinite: the product is not a number, as without fp8.
TEST(Float8Laws, AnInfiniteWeightIsReportedAndUpdatesNothing) {
  for (const float value : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    RunOptions options = WithWeight(value, /*all=*/false);
    options.step.mesh = {.shard = 2};
    const RunResult result = MustRun(options, Batch(2));
    ASSERT_FALSE(result.losses.empty());
    EXPECT_TRUE(result.non_finite);
    options.steps = 0;
    const RunResult before = MustRun(options, Batch(2));
    EXPECT_EQ(result.weights.at("blocks.0.ffn.down.weight"), before.weights.at("blocks.0.ffn.down.weight"));
  }
}

// One large weight takes the whole range, and others round to zero beside it. That is worse, but not wrong.
TEST(Float8Laws, AnOutlierLeavesEverythingFinite) {
  const RunResult result = MustRun(WithWeight(1e6, /*all=*/false), Batch(2));
  ASSERT_FALSE(result.losses.empty());
  EXPECT_TRUE(std::isfinite(result.losses[0]));
  EXPECT_FALSE(result.non_finite);
}

}  // namespace
}  // namespace shale::testing
