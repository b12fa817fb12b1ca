// Tests that every barrier of our kernels is needed, and that the host runner would report a missing one: each is
// removed in turn.
#include <string>
#include <vector>

#include "kernels/ops/attention.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/update.h"
#include "kernels/step_scalars.h"
#include "tests/kernels/cuda/host/run_kernel.h"

namespace shale::testing {
namespace {

constexpr DType kActs[] = {DType::kFloat32, DType::kBFloat16};

TEST(CudaSums, NeedEachOfTheirBarriers) {
  TestMemory memory;
  const Sum op = {.x_N = memory.Random(DType::kFloat32, {20000}), .total_1 = memory.Output(DType::kFloat64, {1})};
  ExpectNeedsEachOfItsBarriers(memory, op, 1);
  ExpectNeedsEachOfItsBarriers(memory, SumSquares{.x_N = op.x_N, .total_1 = op.total_1}, 1);
}

TEST(CudaCrossEntropy, NeedsEachOfItsBarriers) {
  for (const DType act : kActs) {
    TestMemory memory;
    CrossEntropy op = {.logits_TV = memory.Random(act, {2, 1000}),
                       .targets_T = memory.Values(DType::kInt32, {2}, {999, 0}),
                       .scale_1 = memory.Values(DType::kFloat32, {1}, {0.5}),
                       .loss_T = memory.Output(DType::kFloat32, {2})};
    ExpectNeedsEachOfItsBarriers(memory, op, 2);
    op.gradient = false;
    ExpectNeedsEachOfItsBarriers(memory, op, 1);
  }
}

// Tries widths at which a block has several teams of one warp and of two, at which it has one team, and at which rows
// are too wide for any team.
TEST(CudaNorms, NeedEachOfTheirBarriersForwardAndBackward) {
  constexpr DType kAct = DType::kBFloat16;
  constexpr int64_t kRows = 3;
  struct Expected {
    int64_t width;
    size_t forward, rms_backward, layer_backward;  // Numbers of barriers.
  };
  for (const Expected& want : {Expected{600, 0, 2, 3}, {1100, 1, 3, 4}, {2100, 1, 2, 2}, {8200, 1, 3, 4}}) {
    SCOPED_TRACE(want.width);
    TestMemory memory;
    const auto rows = [&](bool output) {
      return output ? memory.Output(kAct, {kRows, want.width}) : memory.Random(kAct, {kRows, want.width});
    };
    const Tensor weight = memory.Random(kAct, {want.width}), statistics = memory.Random(DType::kFloat32, {kRows}, 1, 2);
    const auto floats = [&](int64_t size) { return memory.Output(DType::kFloat32, {size}); };
    ExpectNeedsEachOfItsBarriers(
        memory, RmsNormForward{.x = rows(false), .weight_C = weight, .y = rows(true), .rstd_R = floats(kRows)},
        want.forward);
    ExpectNeedsEachOfItsBarriers(memory,
                                 LayerNormForward{.x = rows(false),
                                                  .weight_C = weight,
                                                  .bias_C = weight,
                                                  .y = rows(true),
                                                  .mean_R = floats(kRows),
                                                  .rstd_R = floats(kRows)},
                                 want.forward);
    ExpectNeedsEachOfItsBarriers(memory,
                                 RmsNormBackward{.d_y = rows(false),
                                                 .x = rows(false),
                                                 .weight_C = weight,
                                                 .rstd_R = statistics,
                                                 .d_x = rows(true),
                                                 .d_weight_C = floats(want.width)},
                                 want.rms_backward);
    ExpectNeedsEachOfItsBarriers(memory,
                                 LayerNormBackward{.d_y = rows(false),
                                                   .x = rows(false),
                                                   .weight_C = weight,
                                                   .mean_R = statistics,
                                                   .rstd_R = statistics,
                                                   .d_x = rows(true),
                                                   .d_weight_C = floats(want.width),
                                                   .d_bias_C = floats(want.width)},
                                 want.layer_backward);
  }
}

TEST(CudaBias, NeedsEachOfItsBarriers) {
  for (const DType act : kActs) {
    TestMemory memory;
    const BiasBackward op = {.d_out_TN = memory.Random(act, {40, 33}),
                             .d_bias_N = memory.Output(DType::kFloat32, {33})};
    ExpectNeedsEachOfItsBarriers(memory, op, 2);
  }
}

TEST(CudaFloat8, NeedsEachOfItsBarriers) {
  for (const DType act : kActs) {
    TestMemory memory;
    const Tensor x = memory.Random(act, {40, 33}), scalar = memory.Values(DType::kFloat32, {1}, {1});
    ExpectNeedsEachOfItsBarriers(memory, AbsMax{x, memory.Output(DType::kFloat32, {1})}, 1);
    QuantizeFloat8 op = {.x_RC = x,
                         .maximum_1 = scalar,
                         .out_RC = memory.Output(DType::kFloat8E4M3, {40, 33}),
                         .scale_1 = memory.Output(DType::kFloat32, {1})};
    ExpectNeedsEachOfItsBarriers(memory, op, 1);
    op.transposed_CR = memory.Output(DType::kFloat8E4M3, {33, 40});
    ExpectNeedsEachOfItsBarriers(memory, op, 2);
    for (const Float8Scales scales : {Float8Scales::kTiles, Float8Scales::kBlocks}) {
      const bool tiles = scales == Float8Scales::kTiles;
      QuantizeFloat8 parts = {.x_RC = x,
                              .out_RC = memory.Output(DType::kFloat8E4M3, {40, 33}),
                              .out_scales = memory.Output(DType::kFloat32, {1, tiles ? 40 : 4}),
                              .scales = scales};
      ExpectNeedsEachOfItsBarriers(memory, parts, tiles ? 0 : 1);
      parts.transposed_CR = memory.Output(DType::kFloat8E4M3, {33, 40});
      parts.transposed_scales = memory.Output(DType::kFloat32, {1, tiles ? 33 : 4});
      ExpectNeedsEachOfItsBarriers(memory, parts, tiles ? 3 : 2);
    }
    const QuantizeShard shard = {.stage = QuantizeShard::Stage::kQuantize,
                                 .weight_P = memory.Random(act, {40}),
                                 .maxima_WQ = memory.Values(DType::kFloat32, {40, 1}, std::vector<double>(40, 1)),
                                 .out_P = memory.Output(DType::kFloat8E4M3, {40}),
                                 .scales_Q = memory.Output(DType::kFloat32, {1}),
                                 .parameters = std::make_shared<std::vector<ElementRange>>(1, ElementRange{0, 40})};
    ExpectNeedsEachOfItsBarriers(memory, shard, 2);
  }
  TestMemory memory;
  ExpectNeedsEachOfItsBarriers(
      memory, TransposeFloat8{memory.Random(DType::kFloat8E4M3, {40, 33}), memory.Output(DType::kFloat8E4M3, {33, 40})},
      1);
}

// A source changes no barrier: what a thread computes of its numbers, it does before the first one.
TEST(CudaFloat8, NeedsEachOfItsBarriersWithEachSource) {
  constexpr int64_t kRows = 40, kInner = 33;
  using Kind = Float8Source::Kind;
  for (const Kind kind : {Kind::kNorm, Kind::kLayerNorm, Kind::kRope, Kind::kGelu, Kind::kGeluGradient, Kind::kGate,
                          Kind::kGateGradient}) {
    SCOPED_TRACE(ToString(kind));
    const bool layer_norm = kind == Kind::kLayerNorm, norm = kind == Kind::kNorm || layer_norm;
    const bool gates = kind == Kind::kGateGradient, gated = kind == Kind::kGate || gates;
    const int64_t columns = gates ? 2 * kInner : kInner;
    TestMemory memory;
    const auto rows = [&](int64_t width) { return memory.Random(DType::kBFloat16, {kRows, width}); };
    Float8Source source = {.kind = kind};
    if (norm) source.weight_C = memory.Random(DType::kBFloat16, {kInner});
    if (norm) source.rstd_R = memory.Random(DType::kFloat32, {kRows}, 1, 2);
    if (layer_norm) source.bias_C = memory.Random(DType::kBFloat16, {kInner});
    if (layer_norm) source.mean_R = memory.Random(DType::kFloat32, {kRows});
    if (gates || kind == Kind::kGeluGradient) source.d_y_RF = rows(kInner);
    if (kind == Kind::kRope) source.rotation = {.sequence_length = kRows / 2, .heads = 2, .head_width = 8};
    const Tensor x = rows(gated ? 2 * kInner : kInner);
    ExpectNeedsEachOfItsBarriers(memory, AbsMax{x, memory.Output(DType::kFloat32, {1}), source}, 1);
    const auto expect_barriers = [&](QuantizeFloat8 op, const Tensor& transposed_scales, size_t one, size_t both) {
      op.x_RC = x;
      op.source = source;
      op.out_RC = memory.Output(DType::kFloat8E4M3, {kRows, columns});
      ExpectNeedsEachOfItsBarriers(memory, op, one);
      op.transposed_CR = memory.Output(DType::kFloat8E4M3, {columns, kRows});
      op.transposed_scales = transposed_scales;
      ExpectNeedsEachOfItsBarriers(memory, op, both);
    };
    expect_barriers(
        {.maximum_1 = memory.Values(DType::kFloat32, {1}, {1}), .scale_1 = memory.Output(DType::kFloat32, {1})},
        Tensor(), 1, 2);
    expect_barriers({.out_scales = memory.Output(DType::kFloat32, {1, kRows}), .scales = Float8Scales::kTiles},
                    memory.Output(DType::kFloat32, {1, columns}), 0, 3);
  }
}

// There are enough positions for two tiles of the sort.
TEST(CudaEmbedding, NeedsEachOfItsBarriers) {
  TestMemory memory;
  const EmbeddingBackward op = {.tokens_BS = memory.RandomIntegers(DType::kInt32, {1, 300}, 0, 9),
                                .d_out_TC = memory.Random(DType::kFloat32, {300, 4}),
                                .d_weight_VC = memory.Output(DType::kFloat32, {9, 4})};
  ExpectNeedsEachOfItsBarriers(memory, op, 2);
}

struct AttentionPair {
  AttentionForward forward;
  AttentionBackward backward;
};

// Returns attention of one sequence in which all heads of queries share keys and values.
AttentionPair AttentionIn(TestMemory& memory, DType act, int64_t length, int64_t heads, int64_t width) {
  const auto inputs = [&](int64_t count) { return memory.Random(act, {1, length, count, width}); };
  const auto outputs = [&](int64_t count) { return memory.Output(act, {1, length, count, width}); };
  const AttentionForward forward = {.q_BSHD = inputs(heads),
                                    .k_BSGD = inputs(1),
                                    .v_BSGD = inputs(1),
                                    .out_BSHD = outputs(heads),
                                    .lse_BHS = memory.Output(DType::kFloat32, {1, heads, length}),
                                    .scale = 0.25f};
  return {.forward = forward,
          .backward = {.q_BSHD = forward.q_BSHD,
                       .k_BSGD = forward.k_BSGD,
                       .v_BSGD = forward.v_BSGD,
                       .out_BSHD = inputs(heads),
                       .lse_BHS = memory.Random(DType::kFloat32, {1, heads, length}, 2, 3),
                       .d_out_BSHD = inputs(heads),
                       .d_q_BSHD = outputs(heads),
                       .d_k_BSGD = outputs(1),
                       .d_v_BSGD = outputs(1),
                       .scale = 0.25f}};
}

// There are enough positions for a block to go through two tiles, but for wide heads forward, which need each of their
// barriers for one tile, too.
TEST(CudaAttention, NeedsEachOfItsBarriersForwardAndBackward) {
  struct Expected {
    DType act;
    int64_t length, heads, width;
    size_t forward, backward;  // Numbers of barriers and waits for copies.
  };
  const Expected cases[] = {
      {DType::kFloat32, 72, 2, 8, 3, 6}, {DType::kBFloat16, 72, 2, 8, 6, 8}, {DType::kBFloat16, 33, 1, 136, 4, 8}};
  for (const Expected& want : cases) {
    SCOPED_TRACE(std::string(ToString(want.act)) + " " + std::to_string(want.width));
    TestMemory memory;
    const AttentionPair ops = AttentionIn(memory, want.act, want.length, want.heads, want.width);
    ExpectNeedsEachOfItsBarriers(memory, ops.forward, want.forward);
    ExpectNeedsEachOfItsBarriers(memory, ops.backward, want.backward);
  }
}

// Regression: where position ids were negative, blocks found no keys and ended while they copied some.
TEST(CudaAttention, StaysInItsOperandsAndWaitsForItsCopiesWhateverPositionIdsAre) {
  for (const int64_t width : {8, 136}) {
    for (const double id : {-1000.0, 1000.0, -2147483648.0, 2147483647.0}) {
      SCOPED_TRACE(std::to_string(width) + " " + std::to_string(id));
      TestMemory memory;
      AttentionPair ops = AttentionIn(memory, DType::kBFloat16, 33, 1, width);
      ops.forward.position_ids_BS = ops.backward.position_ids_BS =
          memory.Values(DType::kInt32, {1, 33}, std::vector<double>(33, id));
      cuda_on_host::Stream stream;
      std::vector<std::byte> image;
      const absl::Status forward = RunKernel(memory, ops.forward, stream, image);
      EXPECT_TRUE(forward.ok()) << forward;
      const absl::Status backward = RunKernel(memory, ops.backward, stream, image);
      EXPECT_TRUE(backward.ok()) << backward;
    }
  }
}

TEST(CudaAdamW8Bit, NeedsItsBarrier) {
  TestMemory memory;
  const Update op = {
      .update_5 = memory.Values(DType::kFloat32, {kUpdateSize}, {1e-2, 1, 1, 1, 0}),
      .gradient_P = memory.Random(DType::kFloat32, {700}),
      .weight_P = memory.Random(DType::kFloat32, {700}),
      .rule = AdamW8BitRule(),
      .states = {memory.RandomIntegers(DType::kUInt8, {700}, 0, 256),
                 memory.RandomIntegers(DType::kUInt8, {700}, 0, 256), memory.Random(DType::kFloat32, {3}, 0.1, 0.2),
                 memory.Random(DType::kFloat32, {3}, 0.1, 0.2)}};
  ExpectNeedsEachOfItsBarriers(memory, op, 1);
}

}  // namespace
}  // namespace shale::testing
