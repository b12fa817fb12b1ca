// Tests WorkOf: what a step computes and moves, as the matmuls bench counts it.
#include "tools/bench/step_work.h"

#include <initializer_list>
#include <map>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/matmul.h"
#include "kernels/tensor.h"

namespace shale {
namespace {

// Buffers that matmuls read: one that is never written, one written in every iteration, one with a slot for each
// iteration.
enum : BufferId { kWeight, kActivation, kInSlots };

// Returns a program with one loop of K = 3 iterations. The last instruction runs only in the last iteration.
StepProgram ProgramOf(std::vector<Action> actions) {
  StepProgram program;
  for (Action& action : actions) program.instructions.push_back({.action = std::move(action)});
  program.instructions.back().last_iteration_only = true;
  program.loops = {{.begin = 0, .end = static_cast<InstructionId>(actions.size()), .repeat = 3}};
  program.buffers.resize(3);
  program.buffers[kInSlots].slots = 3;
  return program;
}

Tensor F32(int64_t elements) { return Tensor::Contiguous(DType::kFloat32, {elements}); }
Tensor In(BufferId buffer, Tensor t) {
  t.where.symbol = buffer;
  return t;
}

TEST(BenchStepWorkTest, CountsMatMulsAttentionAndBytes) {
  const auto bf16 = [](std::initializer_list<int64_t> shape) { return Tensor::Contiguous(DType::kBFloat16, shape); };
  const MatMul matmul{.a = bf16({10, 20}), .b = In(kWeight, bf16({20, 30})), .c_MN = bf16({10, 30})};
  MatMul of_activation = matmul;
  of_activation.b = In(kActivation, matmul.b);
  const MatMul gradient{.a = bf16({10, 20}),
                        .b = In(kInSlots, bf16({10, 30})),
                        .c_MN = Tensor::Contiguous(DType::kFloat32, {20, 30}),
                        .transpose_a = true};
  const AttentionForward attention{.q_BSHD = bf16({2, 50, 6, 8}),
                                   .k_BSGD = bf16({2, 50, 3, 8}),
                                   .v_BSGD = bf16({2, 50, 3, 8}),
                                   .out_BSHD = bf16({2, 50, 6, 8}),
                                   .window = 7};
  AttentionForward both_ways = attention;
  both_ways.window = 0;
  both_ways.causal = false;
  const StepWork work = WorkOf(ProgramOf({
      matmul,
      gradient,
      of_activation,
      attention,
      both_ways,
      Add{.a = F32(100), .b = F32(100), .out = In(kActivation, F32(100))},
      // With four ranks, the all-gather reads and writes `full`. The reduce-scatter reads `full` and writes a quarter.
      Collective{.kind = CollectiveKind::kAllGather, .local = F32(1000), .full = F32(4000)},
      Collective{.kind = CollectiveKind::kReduceScatterSum, .local = F32(1000), .full = F32(4000)},
  }));

  ASSERT_EQ(work.shapes.size(), 2u);
  EXPECT_EQ(work.order, (std::vector<size_t>{0, 1, 0, 0, 1, 0, 0, 1, 0}));
  EXPECT_EQ(work.shapes[0],
            (MatMulSize{.m = 10, .n = 30, .k = 20, .dtype = DType::kBFloat16, .c_dtype = DType::kBFloat16}));
  EXPECT_EQ(work.shapes[1], (MatMulSize{.m = 20, .n = 30, .k = 10, .transposed_a = true, .dtype = DType::kBFloat16}));

  AttentionSize size = {.heads = 12, .length = 50, .width = 8, .window = 7, .dtype = DType::kBFloat16}, wide = size;
  wide.window = 0;
  wide.causal = false;
  EXPECT_EQ(work.attention, (std::map<AttentionSize, int64_t>{{size, 3}, {wide, 3}}));
  EXPECT_EQ(work.attention_flops, 3 * (FlopsOf(attention) + FlopsOf(both_ways)));

  EXPECT_EQ(work.other_bytes, 4 * (3 * (300 + 8000) + 5000));
  // The weight is packed once, the others in every iteration. Packing reads and writes each element.
  EXPECT_EQ(work.packed_bytes, 2 * 2 * (600 + 3 * 600 + 3 * 300));
}

TEST(BenchStepWorkTest, AnOperandIsPackedOnceForEachOrderInWhichItIsRead) {
  const auto f32 = [](std::initializer_list<int64_t> shape) { return Tensor::Contiguous(DType::kFloat32, shape); };
  const Tensor weight = In(kWeight, f32({20, 20}));
  const MatMul forward{.a = f32({10, 20}), .b = weight, .c_MN = f32({10, 20}), .transpose_b = true};
  const MatMul backward{.a = f32({10, 20}), .b = weight, .c_MN = f32({10, 20})};
  MatMul of_rows = forward;
  of_rows.b = weight.Slice(0, 0, 10);
  of_rows.c_MN = f32({10, 10});
  const Action last = Add{.a = F32(1), .b = F32(1), .out = F32(1)};
  EXPECT_EQ(WorkOf(ProgramOf({forward, backward, forward, last})).packed_bytes, 2 * 2 * 1600);
  EXPECT_EQ(WorkOf(ProgramOf({forward, of_rows, last})).packed_bytes, 2 * (1600 + 800));
}

}  // namespace
}  // namespace shale
