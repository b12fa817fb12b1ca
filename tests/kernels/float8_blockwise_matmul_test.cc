// Tests matmuls of fp8 matrices whose tiles or blocks have scales of their own ([Note: blockwise scales] in
// kernels/float8_scales.h).
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/float8_scales.h"
#include "kernels/ops/matmul.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

struct BlockwiseMatMulCase {
  Float8Scales scales;
  int64_t m, n, k;
  DType a = DType::kFloat8E4M3, b = DType::kFloat8E4M3, c = DType::kBFloat16;
  std::optional<DType> bias;
  bool accumulate = false;
  int64_t gap = 0;
};

// Returns scales that are powers of two. Places that fill up a row have a NaN, which nothing may read.
Tensor PowersOfTwo(TestMemory& memory, const Float8ScaleMatrix& matrix, int64_t K) {
  std::vector<double> values(matrix.elements());
  for (int64_t i = 0; i < matrix.elements(); ++i) {
    const bool read = matrix.scales == Float8Scales::kTiles || i % matrix.columns * kFloat8Block < K;
    values[i] = read ? std::ldexp(1, static_cast<int>(i * 7 % 5) - 2) : std::nan("");
  }
  return memory.Values(DType::kFloat32, {matrix.rows, matrix.columns}, values);
}

// Operands are small whole numbers, so that results are exact.
OpCase MakeBlockwiseMatMulCase(const BlockwiseMatMulCase& s) {
  OpCase c;
  c.name = std::string(ToString(s.scales)) + "_" + NameOf(s.a) + "_" + NameOf(s.b) + "_" + NameOf(s.c) + "_" +
           std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k) +
           (s.bias.has_value() ? "_bias" : "") + (s.accumulate ? "_accumulate" : "") + (s.gap > 0 ? "_strided" : "");
  const auto numbers = [&](DType dtype, int64_t rows, int64_t columns) {
    return c.memory.RandomIntegers(dtype, {rows, columns + s.gap}, -2, 3).Slice(1, s.gap / 3, columns);
  };
  MatMul op{.a = numbers(s.a, s.m, s.k),
            .b = numbers(s.b, s.n, s.k),
            .scale_a = PowersOfTwo(c.memory, Float8ScaleMatrix::Of(Float8Scales::kTiles, s.m, s.k), s.k),
            .scale_b = PowersOfTwo(c.memory, Float8ScaleMatrix::Of(s.scales, s.n, s.k), s.k),
            .transpose_b = true,
            .accumulate = s.accumulate,
            .scales = s.scales};
  if (s.bias.has_value()) op.bias_N = c.memory.RandomIntegers(*s.bias, {s.n}, -9, 10);
  op.c_MN = s.accumulate ? numbers(s.c, s.m, s.n) : c.memory.Output(s.c, {s.m, s.n});
  c.op = op;
  return c;
}

std::vector<OpCase> BlockwiseMatMulCases() {
  std::vector<OpCase> cases;
  const auto add = [&](const BlockwiseMatMulCase& s) { cases.push_back(MakeBlockwiseMatMulCase(s)); };
  for (const Float8Scales scales : {Float8Scales::kTiles, Float8Scales::kBlocks}) {
    for (const DType c : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      add({.scales = scales, .m = 4, .n = 16, .k = 16, .c = c});
      add({.scales = scales, .m = 36, .n = 144, .k = 272, .c = c, .gap = 48});
      add({.scales = scales, .m = 132, .n = 160, .k = 416, .a = DType::kFloat8E5M2, .c = c, .accumulate = true});
      add({.scales = scales, .m = 32, .n = 272, .k = 128, .b = DType::kFloat8E5M2, .c = c, .bias = c});
    }
    // Enough rows for b to be packed at once, and many columns, and a long K.
    add({.scales = scales, .m = 532, .n = 144, .k = 336, .bias = DType::kBFloat16});
    add({.scales = scales, .m = 16, .n = 2128, .k = 144});
    add({.scales = scales, .m = 4, .n = 80, .k = 4128, .c = DType::kFloat32, .accumulate = true, .gap = 48});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Float8BlockwiseMatMul, OpConformance, ::testing::ValuesIn(BlockwiseMatMulCases()), CaseName);

TEST(Float8BlockwiseMatMul, SaysWhatItWants) {
  const auto matrix = [](DType dtype, int64_t rows, int64_t columns) {
    return Tensor::Contiguous(dtype, {rows, columns});
  };
  const MatMul valid{.a = matrix(DType::kFloat8E4M3, 8, 160),
                     .b = matrix(DType::kFloat8E4M3, 48, 160),
                     .c_MN = matrix(DType::kBFloat16, 8, 48),
                     .scale_a = matrix(DType::kFloat32, 2, 8),
                     .scale_b = matrix(DType::kFloat32, 1, 4),
                     .transpose_b = true,
                     .scales = Float8Scales::kBlocks};
  EXPECT_TRUE(Validate(valid).ok()) << Validate(valid);
  const auto refused = [&](const auto& change, const std::string& message) {
    MatMul op = valid;
    change(op);
    ExpectRefused(op, {message});
  };
  refused([&](MatMul& op) { op.scales = Float8Scales::kTiles; }, "scale_b is f32[1, 4]; wanted f32[2, 48]");
  refused([&](MatMul& op) { op.scales = Float8Scales::kOne; }, "scale_a is f32[2, 8]; wanted f32[1]");
  refused([&](MatMul& op) { op.scale_a = matrix(DType::kFloat32, 8, 2); }, "scale_a is f32[8, 2]; wanted f32[2, 8]");
  refused([&](MatMul& op) { op.scale_b = Tensor(); }, "scale_b is missing; wanted f32[1, 4]");
  refused([&](MatMul& op) { op.fast_accumulation = true; },
          "fast_accumulation is set for fp8 matrices with blockwise scales");
  refused(
      [&](MatMul& op) {
        op.a = matrix(DType::kFloat8E4M3, 6, 160), op.c_MN = matrix(DType::kBFloat16, 6, 48);
        op.scale_a = matrix(DType::kFloat32, 2, 6);
      },
      "a is f8e4m3[6, 160]; wanted M to be a multiple of 4 in a matmul of fp8 matrices with blockwise scales");
  MatMul wide{.a = matrix(DType::kBFloat16, 8, 16),
              .b = matrix(DType::kBFloat16, 48, 16),
              .c_MN = matrix(DType::kBFloat16, 8, 48),
              .transpose_b = true,
              .scales = Float8Scales::kTiles};
  ExpectRefused(wide, {"scales are not kOne, and a is bf16[8, 16]; wanted others for fp8 matrices only"});
}

}  // namespace
}  // namespace shale::testing
