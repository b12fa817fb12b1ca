// Tests MatMul. BUILD runs this file again with oneDNN limited to older processors, where bf16 is widened.
#include "kernels/ops/matmul.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "gtest/gtest.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

struct MatMulCase {
  int64_t m, n, k;
  bool bias = false;
  bool accumulate = false;
  bool strided = false;
  bool strided_b = false;  // Only b is strided.
  float scale = 1;
};

// Returns a matrix [rows, columns], contiguous or cut out of a wider one.
Tensor Matrix(TestMemory& memory, DType dtype, int64_t rows, int64_t columns, bool strided, bool output) {
  const int64_t stride = strided ? columns + 7 : columns;
  const Tensor t = output ? memory.Output(dtype, {rows, stride}) : memory.Random(dtype, {rows, stride});
  return strided ? t.Slice(1, 4, columns) : t;
}

OpCase MakeMatmulCase(const MatMulCase& s, bool transpose_a, bool transpose_b, DType act, DType c_dtype) {
  OpCase c;
  c.name = NameOf(act) + "_" + NameOf(c_dtype) + "_" + std::to_string(s.m) + "x" + std::to_string(s.n) + "x" +
           std::to_string(s.k) + (transpose_a ? "_ta" : "") + (transpose_b ? "_tb" : "") + (s.bias ? "_bias" : "") +
           (s.accumulate ? "_accumulate" : "") + (s.strided ? "_strided" : "") + (s.strided_b ? "_strided_b" : "") +
           (s.scale != 1 ? "_scaled" : "");
  MatMul op{.transpose_a = transpose_a, .transpose_b = transpose_b, .accumulate = s.accumulate, .scale = s.scale};
  op.a = transpose_a ? Matrix(c.memory, act, s.k, s.m, s.strided, false)
                     : Matrix(c.memory, act, s.m, s.k, s.strided, false);
  const bool strided_b = s.strided || s.strided_b;
  op.b = transpose_b ? Matrix(c.memory, act, s.n, s.k, strided_b, false)
                     : Matrix(c.memory, act, s.k, s.n, strided_b, false);
  if (s.bias) op.bias_N = c.memory.Random(act, {s.n});
  op.c_MN = Matrix(c.memory, c_dtype, s.m, s.n, s.strided, /*output=*/!s.accumulate);
  c.op = op;
  // K products of up to `scale`, and bias or c of up to 1, are summed in any order. Each partial sum errs by at most
  // one unit of its value, and so does scaling.
  const double terms = std::max(1.0f, s.scale) * static_cast<double>(s.k) + (s.scale != 1 ? 2 : 1);
  c.tolerances["c"] = {.absolute = (terms + 1) * terms * kUnit32};
  return c;
}

struct Float8MatMulCase {
  int64_t m, n, k;
  DType a = DType::kFloat8E4M3, b = DType::kFloat8E4M3, c = DType::kBFloat16;
  std::optional<DType> bias = std::nullopt;
  bool accumulate = false;
  bool strided = false;
  double scale_a = 0.5, scale_b = 4;
};

// Operands are small whole numbers and scales are powers of two, so that results are exact: the tensor cores of Hopper
// add products of fp8 in fewer bits than fp32 has. cpu_matmul_test.cc multiplies other numbers.
OpCase MakeFloat8Case(const Float8MatMulCase& s) {
  OpCase c;
  c.name = NameOf(s.a) + "_" + NameOf(s.b) + "_" + NameOf(s.c) + "_" + std::to_string(s.m) + "x" + std::to_string(s.n) +
           "x" + std::to_string(s.k) + (s.bias.has_value() ? "_bias_" + NameOf(*s.bias) : "") +
           (s.accumulate ? "_accumulate" : "") + (s.strided ? "_strided" : "");
  const auto numbers = [&](DType dtype, int64_t rows, int64_t columns, int64_t gap) {
    return c.memory.RandomIntegers(dtype, {rows, columns + gap}, -2, 3).Slice(1, gap / 3, columns);
  };
  const int64_t gap = s.strided ? 48 : 0;
  MatMul op{.a = numbers(s.a, s.m, s.k, gap),
            .b = numbers(s.b, s.n, s.k, gap),
            .scale_a = c.memory.Values(DType::kFloat32, {1}, {s.scale_a}),
            .scale_b = c.memory.Values(DType::kFloat32, {1}, {s.scale_b}),
            .transpose_b = true,
            .accumulate = s.accumulate,
            .fast_accumulation = s.m % 2 == 1};
  if (s.bias.has_value()) op.bias_N = c.memory.RandomIntegers(*s.bias, {s.n}, -9, 10);
  op.c_MN = s.accumulate ? numbers(s.c, s.m, s.n, gap) : Matrix(c.memory, s.c, s.m, s.n, false, /*output=*/true);
  c.op = op;
  return c;
}

std::vector<OpCase> Float8MatMulCases() {
  constexpr DType kE4M3 = DType::kFloat8E4M3, kE5M2 = DType::kFloat8E5M2;
  constexpr DType kF32 = DType::kFloat32, kBF16 = DType::kBFloat16, kF16 = DType::kFloat16;
  std::vector<OpCase> cases;
  for (const auto& [a, b] : {std::pair(kE4M3, kE4M3), {kE5M2, kE4M3}, {kE4M3, kE5M2}}) {
    for (const DType c : {kF32, kBF16, kF16}) {
      cases.push_back(MakeFloat8Case({.m = 1, .n = 16, .k = 16, .a = a, .b = b, .c = c}));
      cases.push_back(MakeFloat8Case({.m = 31, .n = 48, .k = 160, .a = a, .b = b, .c = c, .strided = true}));
      cases.push_back(MakeFloat8Case({.m = 34, .n = 32, .k = 352, .a = a, .b = b, .c = c, .accumulate = true}));
      cases.push_back(MakeFloat8Case({.m = 33, .n = 64, .k = 32, .a = a, .b = b, .c = c, .bias = c}));
    }
    cases.push_back(MakeFloat8Case({.m = 7, .n = 48, .k = 64, .a = a, .b = b, .c = kF32, .bias = kBF16}));
    // Enough rows for b to be packed at once, and a long K.
    cases.push_back(MakeFloat8Case({.m = 530, .n = 144, .k = 96, .a = a, .b = b, .bias = kBF16}));
    cases.push_back(MakeFloat8Case({.m = 512, .n = 64, .k = 1104, .a = a, .b = b, .c = kF32, .accumulate = true}));
  }
  cases.push_back(MakeFloat8Case({.m = 16, .n = 2128, .k = 32}));
  cases.push_back(MakeFloat8Case({.m = 3, .n = 80, .k = 4128, .c = kF32, .accumulate = true, .strided = true}));
  return cases;
}

std::vector<OpCase> MatMulCases() {
  const std::vector<MatMulCase> matmuls = {
      {.m = 1, .n = 1, .k = 1},
      {.m = 1, .n = 7, .k = 13, .bias = true},
      {.m = 1, .n = 67, .k = 1, .strided = true},
      {.m = 31, .n = 1, .k = 17, .accumulate = true},
      {.m = 2, .n = 3, .k = 5, .strided = true},
      {.m = 13, .n = 11, .k = 2, .bias = true, .strided = true},
      {.m = 17, .n = 33, .k = 64, .accumulate = true, .strided = true},
      {.m = 64, .n = 64, .k = 64},
      {.m = 65, .n = 131, .k = 31, .bias = true},
      {.m = 33, .n = 8, .k = 70, .scale = 2},
      {.m = 33, .n = 70, .k = 8, .accumulate = true, .strided = true, .scale = 0.3f},
  };
  std::vector<OpCase> cases;
  const auto add = [&](const MatMulCase& s, bool transpose_a, bool transpose_b) {
    cases.push_back(MakeMatmulCase(s, transpose_a, transpose_b, DType::kFloat32, DType::kFloat32));
    cases.push_back(MakeMatmulCase(s, transpose_a, transpose_b, DType::kBFloat16, DType::kFloat32));
    cases.push_back(MakeMatmulCase(s, transpose_a, transpose_b, DType::kBFloat16, DType::kBFloat16));
    // f16 differs from bf16 in how elements are read and written alone, so each shape needs one case.
    if (s.m * s.n * s.k > 1 << 20) return;
    const DType narrow = transpose_a == transpose_b ? DType::kFloat16 : DType::kFloat32;
    cases.push_back(MakeMatmulCase(s, transpose_a, transpose_b, DType::kFloat16, narrow));
  };
  for (const MatMulCase& s : matmuls) {
    for (const bool transpose_a : {false, true}) {
      for (const bool transpose_b : {false, true}) add(s, transpose_a, transpose_b);
    }
  }
  // Several tiles, with edges along both sides.
  add({.m = 277, .n = 530, .k = 4, .bias = true}, false, true);
  add({.m = 277, .n = 530, .k = 3, .accumulate = true, .strided = true}, true, false);
  // Enough rows for b to be packed first: with full blocks, with edges along both sides, with a sum in several parts.
  for (const bool transpose_b : {false, true}) {
    add({.m = 512, .n = 128, .k = 64}, false, transpose_b);
    add({.m = 530, .n = 150, .k = 97, .bias = true}, false, transpose_b);
    add({.m = 512, .n = 64, .k = 66, .accumulate = true}, false, transpose_b);
    add({.m = 512, .n = 65, .k = 65, .strided_b = true}, false, transpose_b);
    add({.m = 512, .n = 64, .k = 1100, .strided_b = true}, false, transpose_b);
    add({.m = 512, .n = 65, .k = 65, .strided = true}, false, transpose_b);  // b is not packed.
  }
  // What adapters compute: narrow factors, and a product that is added to a part of a row.
  add({.m = 520, .n = 16, .k = 700, .scale = 1.5f}, false, true);
  add({.m = 520, .n = 130, .k = 16, .accumulate = true, .strided = true}, false, true);
  add({.m = 3, .n = 70, .k = 2100, .accumulate = true, .scale = 0.7f}, false, false);
  // Rows of b that are longer than what is read ahead at a time.
  add({.m = 512, .n = 2120, .k = 34}, false, false);
  add({.m = 512, .n = 66, .k = 2100}, false, true);
  // oneDNN would split this K over threads.
  add({.m = 2, .n = 3, .k = 2048}, true, false);
  add({.m = 1, .n = 16, .k = 2048}, false, false);
  return cases;
}

INSTANTIATE_TEST_SUITE_P(MatMul, OpConformance, ::testing::ValuesIn(MatMulCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(Float8MatMul, OpConformance, ::testing::ValuesIn(Float8MatMulCases()), CaseName);

// The reference multiplies matrices of two dtypes, and the other backends, whose kernels do not, refuse by name.
TEST(MatMulTest, TwoDTypesAreComputedOrRefusedByName) {
  TestMemory memory;
  const Op op = MatMul{.a = memory.Random(DType::kFloat32, {5, 7}),
                       .b = memory.Random(DType::kBFloat16, {3, 7}),
                       .c_MN = memory.Output(DType::kFloat32, {5, 3}),
                       .transpose_b = true};
  ASSERT_TRUE(Validate(op).ok()) << Validate(op);
  for (const TestBackend& backend : TestBackends()) {
    const absl::Status status = backend.create_ops()->CheckAvailable(op);
    if (&backend == &TestBackends()[0]) {
      EXPECT_TRUE(status.ok()) << status;
      continue;
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << backend.name;
    EXPECT_NE(status.message().find("MatMul: a is f32[5, 7] and b is bf16[3, 7]; device "), std::string::npos)
        << status;
  }
}

// A matrix with an infinity has an infinite scale, and its finite elements are zeros. A NaN makes all of them NaNs.
TEST(MatMulTest, ScalesOfFloat8ThatAreNotFiniteLeaveNoResultFinite) {
  for (const double scale : {std::numeric_limits<double>::infinity(), std::nan("")}) {
    TestMemory memory;
    const MatMul op{.a = memory.Values(DType::kFloat8E4M3, {3, 16}, std::vector<double>(48, 0.0)),
                    .b = memory.RandomIntegers(DType::kFloat8E4M3, {16, 16}, -2, 3),
                    .c_MN = memory.Output(DType::kBFloat16, {3, 16}),
                    .scale_a = memory.Values(DType::kFloat32, {1}, {scale}),
                    .scale_b = memory.Values(DType::kFloat32, {1}, {1}),
                    .transpose_b = true};
    for (const TestBackend& backend : TestBackends()) {
      SCOPED_TRACE(backend.name);
      std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
      const Tensor c = memory.Bind(op.c_MN, image.data());
      for (int64_t i = 0; i < c.elements(); ++i) ASSERT_FALSE(std::isfinite(ElementOf(c, i))) << i;
    }
  }
}

// A micro-batch that accumulates must add exactly what the first one would write.
TEST(MatMulTest, AccumulatingOntoZerosWritesTheSameBits) {
  TestMemory memory;
  MatMul write{.a = memory.Random(DType::kFloat32, {70, 40}),
               .b = memory.Random(DType::kFloat32, {70, 90}),
               .c_MN = memory.Output(DType::kFloat32, {40, 90}),
               .transpose_a = true};
  MatMul add = write;
  add.c_MN = memory.Values(DType::kFloat32, {40, 90}, std::vector<double>(40 * 90, 0.0));
  add.accumulate = true;
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    std::vector<std::byte> written = RunOnBackend(backend.name, memory, write);
    std::vector<std::byte> added = RunOnBackend(backend.name, memory, add);
    const Tensor w = memory.Bind(write.c_MN, written.data()), a = memory.Bind(add.c_MN, added.data());
    for (int64_t i = 0; i < w.elements(); ++i) ASSERT_EQ(ElementOf(w, i), ElementOf(a, i)) << i;
  }
}

}  // namespace
}  // namespace shale::testing
