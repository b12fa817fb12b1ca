// No barrier of our kernels is there in vain, and none could be missing: each is taken out in turn.
#include <vector>

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

// Enough positions for a block to pass over two tiles.
TEST(CudaAttention, NeedsEachOfItsBarriersForwardAndBackward) {
  constexpr DType kAct = DType::kBFloat16;
  constexpr int64_t kLength = 40, kHeads = 2, kWidth = 8;
  TestMemory memory;
  const auto heads = [&](bool output, int64_t count) {
    return output ? memory.Output(kAct, {1, kLength, count, kWidth}) : memory.Random(kAct, {1, kLength, count, kWidth});
  };
  const AttentionForward forward = {.q_BSHD = heads(false, kHeads),
                                    .k_BSGD = heads(false, 1),
                                    .v_BSGD = heads(false, 1),
                                    .out_BSHD = heads(true, kHeads),
                                    .lse_BHS = memory.Output(DType::kFloat32, {1, kHeads, kLength}),
                                    .scale = 0.25f};
  ExpectNeedsEachOfItsBarriers(memory, forward, 3);
  const AttentionBackward backward = {.q_BSHD = forward.q_BSHD,
                                      .k_BSGD = forward.k_BSGD,
                                      .v_BSGD = forward.v_BSGD,
                                      .out_BSHD = heads(false, kHeads),
                                      .lse_BHS = memory.Random(DType::kFloat32, {1, kHeads, kLength}, 2, 3),
                                      .d_out_BSHD = heads(false, kHeads),
                                      .d_q_BSHD = heads(true, kHeads),
                                      .d_k_BSGD = heads(true, 1),
                                      .d_v_BSGD = heads(true, 1),
                                      .scale = 0.25f};
  ExpectNeedsEachOfItsBarriers(memory, backward, 6);
}

}  // namespace
}  // namespace shale::testing
