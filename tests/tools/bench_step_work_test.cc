// What bench_products takes a step to compute and to move.
#include "tools/bench_step_work.h"

#include <initializer_list>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace shale {
namespace {

// All instructions but the last in K = 3 passes, and it in the last of them.
StepProgram ProgramOf(std::vector<Action> actions) {
  StepProgram program;
  for (Action& action : actions) program.instructions.push_back({.action = std::move(action)});
  program.instructions.back().last_pass_only = true;
  program.sections = {{.begin = 0, .end = static_cast<InstructionId>(actions.size()), .repeat = 3}};
  return program;
}

Tensor F32(int64_t elements) { return Tensor::Contiguous(DType::kFloat32, {elements}); }

TEST(BenchStepWorkTest, CountsProductsAttentionAndBytes) {
  const auto bf16 = [](std::initializer_list<int64_t> shape) { return Tensor::Contiguous(DType::kBFloat16, shape); };
  const MatMul product{.a = bf16({10, 20}), .b = bf16({20, 30}), .c_MN = bf16({10, 30})};
  const MatMul gradient{.a = bf16({10, 20}), .b = bf16({10, 30}), .c_MN = Tensor::Contiguous(DType::kFloat32, {20, 30}),
                        .transpose_a = true};
  const AttentionForward attention{.q_BSHD = bf16({2, 50, 6, 8}), .k_BSGD = bf16({2, 50, 3, 8}),
                                   .v_BSGD = bf16({2, 50, 3, 8}), .out_BSHD = bf16({2, 50, 6, 8}), .window = 7};
  const StepWork work = WorkOf(ProgramOf({
      product, gradient, product, attention,
      Add{.a = F32(100), .b = F32(100), .out = F32(100)},
      // Of four ranks: all is read and written; all is read, and a fourth written.
      Collective{.kind = CollectiveKind::kAllGather, .local = F32(1000), .full = F32(4000)},
      Collective{.kind = CollectiveKind::kReduceScatterSum, .local = F32(1000), .full = F32(4000)},
  }));

  ASSERT_EQ(work.shapes.size(), 2u);
  EXPECT_EQ(work.order, (std::vector<size_t>{0, 1, 0, 0, 1, 0, 0, 1, 0}));
  EXPECT_EQ(work.shapes[0], (ProductSize{.m = 10, .n = 30, .k = 20, .dtype = DType::kBFloat16,
                                         .c_dtype = DType::kBFloat16}));
  EXPECT_EQ(work.shapes[1], (ProductSize{.m = 20, .n = 30, .k = 10, .transposed_a = true, .dtype = DType::kBFloat16}));

  ASSERT_EQ(work.attention.size(), 1u);
  const auto& [size, count] = *work.attention.begin();
  EXPECT_EQ(size, (AttentionSize{.heads = 12, .length = 50, .width = 8, .window = 7, .dtype = DType::kBFloat16}));
  EXPECT_EQ(count, 3);
  EXPECT_EQ(work.attention_flops, 3 * FlopsOf(attention));

  EXPECT_EQ(work.other_bytes, 4 * (3 * (300 + 8000) + 5000));
}

}  // namespace
}  // namespace shale
