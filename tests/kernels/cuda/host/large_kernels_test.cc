// Tests that no index overflows 32 bits. Runs the last blocks of kernels whose operands have more than 2^32 elements,
// more than those of a model of 8 B parameters. The memory is only reserved; pages become resident where they are
// touched.
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "kernels/integers.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/rope.h"
#include "kernels/ops/update.h"
#include "kernels/step_scalars.h"
#include "tests/kernels/cuda/host/reserved_memory.h"
#include "tests/kernels/cuda/host/stream.h"
#include "tests/kernels/test_memory.h"

namespace shale::testing {
namespace {

constexpr DType kAct = DType::kBFloat16;
// kMany x kWide is 4.6 G elements.
constexpr int64_t kMany = 70000, kWide = 65536;

// Returns rows so far apart that the last begins past element 2^33.
Tensor FarRows(ReservedMemory& memory, int64_t rows, int64_t width) {
  Tensor t = Tensor::Contiguous(kAct, {rows, width});
  t.strides[0] = int64_t{1} << 24;
  t.data = memory.Bytes(t.extent_bytes());
  return t;
}

// Returns `t` after setting its last `count` elements to ones.
Tensor EndingInOnes(Tensor t, int64_t count) {
  for (int64_t i = t.elements() - count; i < t.elements(); ++i) SetElement(t, i, 1);
  return t;
}

double LastOf(const Tensor& t) { return ElementOf(t, t.elements() - 1); }

cuda_on_host::Stream StreamOfLastBlocks() { return {.last_blocks = 4}; }

template <class OpType>
void RunLastBlocks(ReservedMemory& memory, const OpType& op) {
  const absl::Status valid = Validate(op);
  ASSERT_TRUE(valid.ok()) << valid;
  const int64_t scratch_bytes = cuda::ScratchBytesOf(op);
  cuda_on_host::Stream stream = StreamOfLastBlocks();
  const Scratch scratch = {static_cast<std::byte*>(memory.Bytes(scratch_bytes)), scratch_bytes};
  const absl::Status status = cuda::Run(op, scratch, &stream);
  ASSERT_TRUE(status.ok()) << status;
}

TEST(LargeOperands, RmsNorm) {
  ReservedMemory memory;
  constexpr int64_t kRows = 600, kWidth = 2048;
  const Tensor weight = EndingInOnes(memory.Zeros(kAct, {kWidth}), kWidth);
  const RmsNormForward forward = {.x = EndingInOnes(FarRows(memory, kRows, kWidth), kWidth),
                                  .weight_C = weight,
                                  .y = FarRows(memory, kRows, kWidth),
                                  .rstd_R = memory.Zeros(DType::kFloat32, {kRows})};
  RunLastBlocks(memory, forward);
  EXPECT_EQ(LastOf(forward.rstd_R), 1);
  EXPECT_EQ(LastOf(forward.y), 1);
  // The last row has ones only, so g and n are ones, and so is the mean of their product.
  const RmsNormBackward backward = {.d_y = EndingInOnes(FarRows(memory, kRows, kWidth), kWidth),
                                    .x = forward.x,
                                    .weight_C = weight,
                                    .rstd_R = EndingInOnes(memory.Zeros(DType::kFloat32, {kRows}), kRows),
                                    .d_residual = EndingInOnes(FarRows(memory, kRows, kWidth), 1),
                                    .d_x = FarRows(memory, kRows, kWidth),
                                    .d_weight_C = memory.Zeros(DType::kFloat32, {kWidth})};
  RunLastBlocks(memory, backward);
  EXPECT_EQ(LastOf(backward.d_x), 1);
  EXPECT_EQ(LastOf(backward.d_weight_C), 1);
}

TEST(LargeOperands, WideLayerNorm) {
  ReservedMemory memory;
  const Tensor weight = EndingInOnes(memory.Zeros(kAct, {kWide}), kWide);
  const LayerNormForward forward = {.x = memory.Zeros(kAct, {kMany, kWide}),
                                    .weight_C = weight,
                                    .bias_C = weight,
                                    .y = memory.Zeros(kAct, {kMany, kWide}),
                                    .mean_R = memory.Zeros(DType::kFloat32, {kMany}),
                                    .rstd_R = memory.Zeros(DType::kFloat32, {kMany}),
                                    .epsilon = 1};
  RunLastBlocks(memory, forward);
  EXPECT_EQ(LastOf(forward.rstd_R), 1);
  EXPECT_EQ(LastOf(forward.y), 1);
}

TEST(LargeOperands, Bias) {
  ReservedMemory memory;
  const BiasBackward op = {.d_out_TN = EndingInOnes(FarRows(memory, 600, 200), 200),
                           .d_bias_N = memory.Zeros(DType::kFloat32, {200})};
  RunLastBlocks(memory, op);
  EXPECT_EQ(LastOf(op.d_bias_N), 1);
}

TEST(LargeOperands, Embedding) {
  ReservedMemory memory;
  constexpr int64_t kRows = 9000, kWidth = 1 << 19;
  const Tensor tokens = memory.Zeros(DType::kInt32, {1, kRows});
  SetElement(tokens, kRows - 1, kRows - 1);
  const EmbeddingForward forward = {.tokens_BS = tokens,
                                    .weight_VC = EndingInOnes(memory.Zeros(kAct, {kRows, kWidth}), 1),
                                    .positions_PC = EndingInOnes(memory.Zeros(kAct, {kRows, kWidth}), 1),
                                    .out_TC = memory.Zeros(kAct, {kRows, kWidth})};
  RunLastBlocks(memory, forward);
  EXPECT_EQ(LastOf(forward.out_TC), 2);
  for (const bool accumulate : {false, true}) {
    const EmbeddingBackward backward = {
        .tokens_BS = tokens,
        .d_out_TC = EndingInOnes(memory.Zeros(kAct, {kRows, kWidth}), 1),
        .d_weight_VC = EndingInOnes(memory.Zeros(DType::kFloat32, {kRows, kWidth}), 1),
        .d_positions_PC = EndingInOnes(memory.Zeros(DType::kFloat32, {kRows, kWidth}), 1),
        .accumulate = accumulate};
    RunLastBlocks(memory, backward);
    EXPECT_EQ(LastOf(backward.d_weight_VC), accumulate ? 2 : 1);
    EXPECT_EQ(LastOf(backward.d_positions_PC), accumulate ? 2 : 1);
  }
}

TEST(LargeOperands, Rope) {
  ReservedMemory memory;
  constexpr int64_t kHeads = 64, kWidth = 1024;
  const Rope op = {.x_BSHD = EndingInOnes(memory.Zeros(kAct, {1, kMany, kHeads, kWidth}), kWidth)};
  RunLastBlocks(memory, op);
  const double angle = (kMany - 1) * std::pow(10000.0, -1022.0 / kWidth);
  EXPECT_NEAR(LastOf(op.x_BSHD), std::cos(angle) + std::sin(angle), 0.01);
}

TEST(LargeOperands, Activations) {
  ReservedMemory memory;
  const SwiGluForward swiglu = {.gate_up_T2F = EndingInOnes(memory.Zeros(kAct, {kMany, 2 * kWide}), 2 * kWide),
                                .y_TF = memory.Zeros(kAct, {kMany, kWide})};
  RunLastBlocks(memory, swiglu);
  EXPECT_NEAR(LastOf(swiglu.y_TF), 0.731, 0.003);  // sigmoid(1)
  const SwiGluBackward swiglu_backward = {.gate_up_T2F = swiglu.gate_up_T2F,
                                          .d_y_TF = EndingInOnes(memory.Zeros(kAct, {kMany, kWide}), 1),
                                          .d_gate_up_T2F = memory.Zeros(kAct, {kMany, 2 * kWide})};
  RunLastBlocks(memory, swiglu_backward);
  EXPECT_NEAR(LastOf(swiglu_backward.d_gate_up_T2F), 0.731, 0.003);
  const Tensor x = EndingInOnes(memory.Zeros(kAct, {kMany, kWide}), 1);
  const GeluForward gelu = {.x_TF = x, .y_TF = memory.Zeros(kAct, {kMany, kWide})};
  RunLastBlocks(memory, gelu);
  EXPECT_NEAR(LastOf(gelu.y_TF), 0.841, 0.003);  // Phi(1)
  const GeluBackward gelu_backward = {.x_TF = x, .d_y_TF = x, .d_x_TF = memory.Zeros(kAct, {kMany, kWide})};
  RunLastBlocks(memory, gelu_backward);
  EXPECT_NEAR(LastOf(gelu_backward.d_x_TF), 1.083, 0.006);  // Phi(1) + phi(1)
}

TEST(LargeOperands, LossesAndAdditions) {
  ReservedMemory memory;
  const CrossEntropy loss = {.logits_TV = memory.Zeros(kAct, {kMany, kWide}),
                             .targets_T = EndingInOnes(memory.Zeros(DType::kInt32, {kMany}), 1),
                             .scale_1 = EndingInOnes(memory.Zeros(DType::kFloat32, {1}), 1),
                             .loss_T = memory.Zeros(DType::kFloat32, {kMany})};
  RunLastBlocks(memory, loss);
  EXPECT_NEAR(LastOf(loss.loss_T), std::log(static_cast<double>(kWide)), 1e-5);
  const SquaredError squares = {.prediction_TD = EndingInOnes(memory.Zeros(kAct, {kMany, kWide}), 1),
                                .targets_TD = memory.Zeros(DType::kFloat32, {kMany, kWide}),
                                .scale_1 = EndingInOnes(memory.Zeros(DType::kFloat32, {1}), 1),
                                .loss_T = memory.Zeros(DType::kFloat32, {kMany}),
                                .d_prediction_TD = memory.Zeros(kAct, {kMany, kWide})};
  RunLastBlocks(memory, squares);
  EXPECT_EQ(LastOf(squares.loss_T), 1.0 / kWide);
  EXPECT_EQ(LastOf(squares.d_prediction_TD), 2.0 / kWide);
  const Tensor a = EndingInOnes(memory.Zeros(kAct, {kMany * kWide}), 1);
  const Add add = {.a = a, .b = a, .out = memory.Zeros(kAct, {kMany * kWide})};
  RunLastBlocks(memory, add);
  EXPECT_EQ(LastOf(add.out), 2);
  const Copy copy = {.from = a, .to = memory.Zeros(DType::kFloat32, {kMany * kWide})};
  RunLastBlocks(memory, copy);
  EXPECT_EQ(LastOf(copy.to), 1);
}

// There are so many heads that positions lie more than 2^27 elements apart, and lse has more than 2^32 elements. The
// last blocks are all tiles of the last head. Its last query and key are ones: they meet with a score of 1, and all
// other scores are 0.
TEST(LargeOperands, Attention) {
  ReservedMemory memory;
  constexpr int64_t kPositions = 128, kHeads = 36'000'000, kWidth = 4;
  const auto act = [&] { return memory.Zeros(kAct, {1, kPositions, kHeads, kWidth}); };
  const Tensor x = EndingInOnes(act(), kWidth);
  const double e = std::exp(1.0), p = e / (e + kPositions - 1);
  const AttentionForward forward = {.q_BSHD = x,
                                    .k_BSGD = x,
                                    .v_BSGD = x,
                                    .out_BSHD = act(),
                                    .lse_BHS = memory.Zeros(DType::kFloat32, {1, kHeads, kPositions}),
                                    .scale = 1.0f / kWidth};
  RunLastBlocks(memory, forward);
  EXPECT_NEAR(LastOf(forward.lse_BHS), std::log(e + kPositions - 1), 1e-5);
  EXPECT_NEAR(LastOf(forward.out_BSHD), p, 0.004 * p);
  const AttentionBackward backward = {.q_BSHD = x,
                                      .k_BSGD = x,
                                      .v_BSGD = x,
                                      .out_BSHD = forward.out_BSHD,
                                      .lse_BHS = forward.lse_BHS,
                                      .d_out_BSHD = x,
                                      .d_q_BSHD = act(),
                                      .d_k_BSGD = act(),
                                      .d_v_BSGD = act(),
                                      .scale = forward.scale};
  RunLastBlocks(memory, backward);
  EXPECT_NEAR(LastOf(backward.d_q_BSHD), p * (1 - p), 0.008 * p);
  EXPECT_NEAR(LastOf(backward.d_k_BSGD), p * (1 - p), 0.008 * p);
  EXPECT_NEAR(LastOf(backward.d_v_BSGD), p, 0.004 * p);
}

TEST(LargeOperands, Updates) {
  ReservedMemory memory;
  constexpr int64_t kSize = kMany * kWide, kPieces = 70, kShardBegin = 3 * kSize;
  const auto floats = [&] { return memory.Zeros(DType::kFloat32, {kSize}); };
  // There are more edges than one launch takes, so the second launch begins past 2^32.
  auto decayed = std::make_shared<std::vector<ElementRange>>();
  for (int64_t i = 1; i <= kPieces; ++i) {
    const int64_t end = kShardBegin + kSize / kPieces * i;
    decayed->push_back({end - 1, end});
  }
  Update op = {.update_5 = EndingInOnes(memory.Zeros(DType::kFloat32, {kUpdateSize}), kUpdateSize),
               .gradient_P = EndingInOnes(floats(), 2),
               .weight_P = EndingInOnes(memory.Zeros(kAct, {kSize}), 2),
               .low_P = memory.Zeros(DType::kInt16, {kSize}),
               .rule = AdamWRule{.beta1 = 0.75f, .beta2 = 0.75f, .epsilon = 0, .weight_decay = 0.25f},
               .states = {floats(), floats()},
               .decayed = decayed,
               .shard_begin = kShardBegin};
  SetElement(op.update_5, kUpdateSkip, 0);
  SetElement(op.update_5, kUpdateLearningRate, 0.5);
  RunLastBlocks(memory, op);
  EXPECT_EQ(LastOf(op.states[0]), 0.25);
  EXPECT_EQ(LastOf(op.states[1]), 0.25);
  // Each weight becomes 1 - 0.5 m / sqrt(v). The last element decays by an eighth before that.
  EXPECT_EQ(ElementOf(op.weight_P, kSize - 2), 0.75);
  EXPECT_EQ(LastOf(op.weight_P), 0.625);

  // The same with 8-bit states. The last block takes its scale from its last two elements, whose codes are those of 1.
  const auto codes = [&] { return memory.Zeros(DType::kUInt8, {kSize}); };
  const auto scales = [&] { return memory.Zeros(DType::kFloat32, {CeilDivide(kSize, kQuantizedBlock)}); };
  op.weight_P = EndingInOnes(memory.Zeros(kAct, {kSize}), 2);
  op.low_P = memory.Zeros(DType::kInt16, {kSize});
  op.rule = AdamW8BitRule{.beta1 = 0.75f, .beta2 = 0.75f, .epsilon = 0, .weight_decay = 0.25f};
  op.states = {codes(), codes(), scales(), scales()};
  RunLastBlocks(memory, op);
  for (int state = 0; state < 2; ++state) {
    EXPECT_EQ(LastOf(op.states[state]), 255);
    EXPECT_EQ(LastOf(op.states[state + 2]), 0.25);
  }
  EXPECT_EQ(ElementOf(op.weight_P, kSize - 2), 0.75);
  EXPECT_EQ(LastOf(op.weight_P), 0.625);
}

TEST(LargeOperands, Sums) {
  ReservedMemory memory;
  constexpr int64_t kOnes = 3;
  const Tensor x = EndingInOnes(memory.Zeros(DType::kFloat32, {kMany * kWide}), kOnes);
  const Sum sum = {.x_N = x, .total_1 = memory.Zeros(DType::kFloat64, {1})};
  RunLastBlocks(memory, sum);
  EXPECT_EQ(LastOf(sum.total_1), kOnes);
  const SumSquares squares = {.x_N = x, .total_1 = memory.Zeros(DType::kFloat64, {1})};
  RunLastBlocks(memory, squares);
  EXPECT_EQ(LastOf(squares.total_1), kOnes);
}

TEST(LargeOperands, SumsOfRanks) {
  ReservedMemory memory;
  constexpr int64_t kSize = kMany * kWide;
  const Tensor x = EndingInOnes(memory.Zeros(DType::kFloat32, {kSize}), 1);
  const Tensor out = memory.Zeros(DType::kFloat32, {kSize});
  const std::byte* inputs[] = {x.as<std::byte>(), x.as<std::byte>(), x.as<std::byte>()};
  cuda_on_host::Stream stream = StreamOfLastBlocks();
  const absl::Status status = cuda::SumRanks(DType::kFloat32, inputs, out.as<std::byte>(), kSize, &stream);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(LastOf(out), 3);
}

TEST(LargeOperands, BroadcastBias) {
  ReservedMemory memory;
  const Tensor bias = EndingInOnes(memory.Zeros(kAct, {kWide}), 1), c = memory.Zeros(DType::kFloat32, {kMany, kWide});
  cuda_on_host::Stream stream = StreamOfLastBlocks();
  const absl::Status status = cuda::BroadcastBias(bias, c, &stream);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(LastOf(c), 1);
}

TEST(LargeOperands, Float8) {
  ReservedMemory memory;
  const AbsMax maximum = {.x_RC = EndingInOnes(memory.Zeros(kAct, {kMany, kWide}), 1),
                          .maximum_1 = memory.Zeros(DType::kFloat32, {1})};
  RunLastBlocks(memory, maximum);
  EXPECT_EQ(LastOf(maximum.maximum_1), 1);
  const QuantizeFloat8 quantize = {.x_RC = maximum.x_RC,
                                   .maximum_1 = maximum.maximum_1,
                                   .out_RC = memory.Zeros(DType::kFloat8E4M3, {kMany, kWide}),
                                   .transposed_CR = memory.Zeros(DType::kFloat8E4M3, {kWide, kMany}),
                                   .scale_1 = memory.Zeros(DType::kFloat32, {1})};
  RunLastBlocks(memory, quantize);
  EXPECT_EQ(LastOf(quantize.out_RC), 448);
  EXPECT_EQ(LastOf(quantize.transposed_CR), 448);
  const TransposeFloat8 transpose = {.x_RC = quantize.out_RC, .y_CR = memory.Zeros(DType::kFloat8E4M3, {kWide, kMany})};
  RunLastBlocks(memory, transpose);
  EXPECT_EQ(LastOf(transpose.y_CR), 448);
  const QuantizeShard shard = {
      .stage = QuantizeShard::Stage::kQuantize,
      .weight_P = maximum.x_RC.Reshape({kMany * kWide}),
      .maxima_WQ = maximum.maximum_1.Reshape({1, 1}),
      .out_P = memory.Zeros(DType::kFloat8E4M3, {kMany * kWide}),
      .scales_Q = memory.Zeros(DType::kFloat32, {1}),
      .parameters = std::make_shared<std::vector<ElementRange>>(1, ElementRange{0, kMany * kWide})};
  RunLastBlocks(memory, shard);
  EXPECT_EQ(LastOf(shard.out_P), 448);
  QuantizeFloat8 far = quantize;
  far.x_RC = EndingInOnes(FarRows(memory, 600, 200), 1);
  far.out_RC = memory.Zeros(DType::kFloat8E4M3, {600, 200});
  far.transposed_CR = memory.Zeros(DType::kFloat8E4M3, {200, 600});
  RunLastBlocks(memory, far);
  EXPECT_EQ(LastOf(far.out_RC), 448);
  EXPECT_EQ(LastOf(far.transposed_CR), 448);
}

TEST(LargeOperands, Float8OfANorm) {
  ReservedMemory memory;
  const Float8Source norm = {.kind = Float8Source::Kind::kNorm,
                             .weight_C = EndingInOnes(memory.Zeros(kAct, {kWide}), 1),
                             .rstd_R = EndingInOnes(memory.Zeros(DType::kFloat32, {kMany}), 1)};
  const AbsMax maximum = {.x_RC = EndingInOnes(memory.Zeros(kAct, {kMany, kWide}), 1),
                          .maximum_1 = memory.Zeros(DType::kFloat32, {1}),
                          .source = norm};
  RunLastBlocks(memory, maximum);
  EXPECT_EQ(LastOf(maximum.maximum_1), 1);
  const QuantizeFloat8 quantize = {.x_RC = maximum.x_RC,
                                   .maximum_1 = maximum.maximum_1,
                                   .out_RC = memory.Zeros(DType::kFloat8E4M3, {kMany, kWide}),
                                   .transposed_CR = memory.Zeros(DType::kFloat8E4M3, {kWide, kMany}),
                                   .scale_1 = memory.Zeros(DType::kFloat32, {1}),
                                   .source = norm};
  RunLastBlocks(memory, quantize);
  EXPECT_EQ(LastOf(quantize.out_RC), 448);
  EXPECT_EQ(LastOf(quantize.transposed_CR), 448);
}

// Every sequence is one token, which is not turned.
TEST(LargeOperands, Float8OfRotatedHeads) {
  ReservedMemory memory;
  const Float8Source rope = {.kind = Float8Source::Kind::kRope,
                             .rotation = {.sequence_length = 1, .heads = kWide / 2, .head_width = 2}};
  const AbsMax maximum = {.x_RC = EndingInOnes(memory.Zeros(kAct, {kMany, kWide}), 1),
                          .maximum_1 = memory.Zeros(DType::kFloat32, {1}),
                          .source = rope};
  RunLastBlocks(memory, maximum);
  EXPECT_EQ(LastOf(maximum.maximum_1), 1);
  const QuantizeFloat8 quantize = {.x_RC = maximum.x_RC,
                                   .maximum_1 = maximum.maximum_1,
                                   .out_RC = memory.Zeros(DType::kFloat8E5M2, {kMany, kWide}),
                                   .transposed_CR = memory.Zeros(DType::kFloat8E5M2, {kWide, kMany}),
                                   .scale_1 = memory.Zeros(DType::kFloat32, {1}),
                                   .source = rope};
  RunLastBlocks(memory, quantize);
  EXPECT_EQ(LastOf(quantize.out_RC), 57344);
  EXPECT_EQ(LastOf(quantize.transposed_CR), 57344);
}

TEST(LargeOperands, BlockwiseFloat8) {
  for (const Float8Scales scales : {Float8Scales::kTiles, Float8Scales::kBlocks}) {
    ReservedMemory memory;
    const auto places = [&](int64_t rows, int64_t columns) {
      const Float8ScaleMatrix matrix = Float8ScaleMatrix::Of(scales, rows, columns);
      return memory.Zeros(DType::kFloat32, {matrix.rows, matrix.columns});
    };
    for (const bool far : {false, true}) {
      const int64_t rows = far ? 600 : kMany, columns = far ? 200 : kWide;
      const QuantizeFloat8 op = {
          .x_RC = EndingInOnes(far ? FarRows(memory, rows, columns) : memory.Zeros(kAct, {rows, columns}), 1),
          .out_RC = memory.Zeros(DType::kFloat8E4M3, {rows, columns}),
          .transposed_CR = memory.Zeros(DType::kFloat8E4M3, {columns, rows}),
          .out_scales = places(rows, columns),
          .transposed_scales = places(columns, rows),
          .scales = scales};
      RunLastBlocks(memory, op);
      EXPECT_EQ(LastOf(op.out_RC), 448);
      EXPECT_EQ(LastOf(op.transposed_CR), 448);
      EXPECT_EQ(LastOf(op.out_scales) > 0, scales == Float8Scales::kTiles || !far);
    }
  }
}

TEST(LargeOperands, AccumulateAndZeroRanges) {
  ReservedMemory memory;
  constexpr int64_t kSize = kMany * kWide;
  const Tensor x = EndingInOnes(memory.Zeros(DType::kFloat32, {kSize}), 2);
  const Tensor total = memory.Zeros(DType::kFloat32, {kSize});
  for (const bool accumulate : {false, true}) {
    RunLastBlocks(memory, Accumulate{.x_N = x, .total_N = total, .accumulate = accumulate});
    EXPECT_EQ(LastOf(total), accumulate ? 2 : 1);
  }
  const ZeroRanges zero = {
      .x_N = total, .ranges = std::make_shared<std::vector<ElementRange>>(std::vector<ElementRange>{{7, kSize - 1}})};
  RunLastBlocks(memory, zero);
  EXPECT_EQ(ElementOf(total, kSize - 2), 0);
  EXPECT_EQ(LastOf(total), 2);
}

}  // namespace
}  // namespace shale::testing
