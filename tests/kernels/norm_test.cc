// Tests RMSNorm and LayerNorm.
#include "kernels/ops/norm.h"

#include "gtest/gtest.h"
#include "tests/kernels/gradient_check.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

struct NormShape {
  int64_t rows = 1;
  int64_t width = 1;
  int64_t heads = 0;           // If not 0, rank 3: [rows, heads, width].
  bool residual = false;       // Forward: residual and sum. Backward: d_residual.
  bool in_place = false;       // Forward: y is x. Backward: d_x is d_y.
  bool onto_residual = false;  // Backward: d_x is d_residual.
  bool strided = false;
  bool accumulate = false;
  bool frozen_weight = false;  // Backward: there is no d_weight.
  bool frozen_bias = false;    // Backward: there is no d_bias.
  bool adds_one = false;       // RMSNorm: multiplies by 1 + weight.

  int64_t all_rows() const { return heads > 0 ? rows * heads : rows; }
  std::string Name(DType act) const {
    std::string name = NameOf(act) + "_" + std::to_string(rows) + "x";
    if (heads > 0) name += std::to_string(heads) + "x";
    name += std::to_string(width);
    if (residual) name += "_residual";
    if (in_place) name += "_in_place";
    if (onto_residual) name += "_onto_residual";
    if (strided) name += "_strided";
    if (accumulate) name += "_accumulate";
    if (frozen_weight) name += "_frozen_weight";
    if (frozen_bias) name += "_frozen_bias";
    if (adds_one) name += "_adds_one";
    return name;
  }
};

// Returns [rows, width] or [rows, heads, width], contiguous or cut out of a wider tensor.
Tensor RowTensor(TestMemory& memory, const NormShape& s, DType dtype, bool output, bool strided) {
  const int64_t row = s.heads > 0 ? s.heads * s.width : s.width;
  const int64_t stride = strided ? row + 5 : row;
  Tensor t = output ? memory.Output(dtype, {s.rows, stride}) : memory.Random(dtype, {s.rows, stride});
  if (strided) t = t.Slice(1, 3, row);
  return s.heads > 0 ? t.SplitLast(s.heads, s.width) : t;
}

// x is uniform in [-1, 1): rms and deviation are about 0.58, except in very short rows, where epsilon = 1e-3 bounds
// 1 / rms.
double LargestRstd(const NormShape& s) { return s.width < 7 ? 32 : 3; }

// A sum of n terms of one sign in fp32, in any order, errs by at most n units of its value, and its root by half of
// that.
Tolerance RstdTolerance(const NormShape& s) { return {.relative = (static_cast<double>(s.width) + 4) * kUnit32}; }

template <class OpType>
OpType NormForwardInputs(TestMemory& memory, const NormShape& s, DType act) {
  OpType op;
  op.x = RowTensor(memory, s, act, /*output=*/false, s.strided);
  if (s.residual) {
    op.residual = RowTensor(memory, s, act, /*output=*/false, /*strided=*/false);
    op.sum = RowTensor(memory, s, act, /*output=*/true, /*strided=*/false);
  }
  op.weight_C = memory.Random(act, {s.width}, 0.5, 1.5);
  op.y = s.in_place ? op.x : RowTensor(memory, s, act, /*output=*/true, s.strided);
  op.rstd_R = memory.Output(act == DType::kFloat64 ? act : DType::kFloat32, {s.all_rows()});
  op.epsilon = 1e-3f;
  return op;
}

// Makes the weight of an RMSNorm one that is added to 1, with the same bounds.
template <class OpType>
OpType WithOffset(TestMemory& memory, const NormShape& s, OpType op) {
  if (!s.adds_one) return op;
  op.weight_C = memory.Random(op.weight_C.dtype, {s.width}, -0.5, 0.5);
  op.weight_offset = 1;
  return op;
}

OpCase RmsNormForwardCase(const NormShape& s, DType act) {
  OpCase c{.name = "RmsNormForward_" + s.Name(act)};
  c.op = WithOffset(c.memory, s, NormForwardInputs<RmsNormForward>(c.memory, s, act));
  // In fp32 every backend rounds the sum x + residual once.
  c.tolerances["y"] = c.tolerances["rstd"] = RstdTolerance(s);
  return c;
}

OpCase LayerNormForwardCase(const NormShape& s, DType act) {
  OpCase c{.name = "LayerNormForward_" + s.Name(act)};
  auto op = NormForwardInputs<LayerNormForward>(c.memory, s, act);
  op.bias_C = c.memory.Random(act, {s.width});
  op.mean_R = c.memory.Output(DType::kFloat32, {s.all_rows()});
  c.op = op;
  // The mean is over n values of up to 2 (x + residual). Its error enters y times rstd weight, beside the error of rstd
  // itself.
  const double mean_error = (static_cast<double>(s.width) + 2) * kUnit32 * 2;
  c.tolerances["mean"] = {.absolute = mean_error};
  c.tolerances["rstd"] = {.relative = RstdTolerance(s).relative + 2 * mean_error * LargestRstd(s)};
  c.tolerances["y"] = {.absolute = 1.5 * LargestRstd(s) * mean_error, .relative = 2 * c.tolerances["rstd"].relative};
  return c;
}

Tensor GradientTensor(TestMemory& memory, const NormShape& s) {
  return s.accumulate ? memory.Random(DType::kFloat32, {s.width}) : memory.Output(DType::kFloat32, {s.width});
}

template <class OpType>
OpType NormBackwardInputs(TestMemory& memory, const NormShape& s, DType act) {
  OpType op;
  op.d_y = RowTensor(memory, s, act, /*output=*/false, s.strided);
  op.x = RowTensor(memory, s, act, /*output=*/false, s.strided);
  op.weight_C = memory.Random(act, {s.width}, 0.5, 1.5);
  op.rstd_R = memory.Random(DType::kFloat32, {s.all_rows()}, 1, 3);
  if (s.residual) op.d_residual = RowTensor(memory, s, act, /*output=*/false, /*strided=*/false);
  op.d_x = s.in_place        ? op.d_y
           : s.onto_residual ? op.d_residual
                             : RowTensor(memory, s, act, /*output=*/true, s.strided);
  if (!s.frozen_weight) op.d_weight_C = GradientTensor(memory, s);
  op.accumulate = s.accumulate;
  return op;
}

// With |d_y| < 1, |weight| < 1.5, |n| < 6 (|x - mean| < 2, rstd < 3): |g n| < 9. The means of n terms err by at most n
// units of the mean of |g n|, and enter d_x times |n| rstd < 18. A column sums `rows` terms of up to 6.
std::map<std::string, Tolerance> NormBackwardTolerances(const NormShape& s) {
  const double rows = static_cast<double>(s.all_rows());
  const Tolerance columns = {.absolute = (rows + 4) * kUnit32 * 6 * rows, .relative = kUnit32};
  const double mean_error = (static_cast<double>(s.width) + 4) * kUnit32 * 9;
  return {{"d_x", {.absolute = 18 * mean_error + 32 * kUnit32}}, {"d_weight", columns}, {"d_bias", columns}};
}

OpCase RmsNormBackwardCase(const NormShape& s, DType act) {
  OpCase c{.name = "RmsNormBackward_" + s.Name(act)};
  c.op = WithOffset(c.memory, s, NormBackwardInputs<RmsNormBackward>(c.memory, s, act));
  c.tolerances = NormBackwardTolerances(s);
  return c;
}

OpCase LayerNormBackwardCase(const NormShape& s, DType act) {
  OpCase c{.name = "LayerNormBackward_" + s.Name(act)};
  auto op = NormBackwardInputs<LayerNormBackward>(c.memory, s, act);
  op.mean_R = c.memory.Random(DType::kFloat32, {s.all_rows()});
  if (!s.frozen_bias) op.d_bias_C = GradientTensor(c.memory, s);
  c.op = op;
  c.tolerances = NormBackwardTolerances(s);
  return c;
}

// Widths lie around the vector lengths 4, 8 and 16, rows around the blocks in which columns are summed.
std::vector<OpCase> NormCases() {
  const std::vector<NormShape> shapes = {
      {.rows = 1, .width = 1},
      {.rows = 3, .width = 7},
      {.rows = 5, .width = 16, .residual = true},
      {.rows = 4, .width = 33, .residual = true, .accumulate = true},
      {.rows = 17, .width = 64, .in_place = true},
      {.rows = 3, .width = 19, .residual = true, .in_place = true},
      {.rows = 6, .width = 37, .strided = true},
      {.rows = 5, .width = 24, .in_place = true, .strided = true, .accumulate = true},
      {.rows = 7, .width = 13, .heads = 3, .strided = true},
      {.rows = 5, .width = 8, .heads = 2, .in_place = true, .strided = true},
      {.rows = 130, .width = 21, .accumulate = true},
      {.rows = 1100, .width = 5},
      {.rows = 2, .width = 1031, .residual = true},
  };
  std::vector<OpCase> cases;
  for (const DType act : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const NormShape& s : shapes) {
      if (!s.accumulate) {
        cases.push_back(RmsNormForwardCase(s, act));
        cases.push_back(LayerNormForwardCase(s, act));
      }
      cases.push_back(RmsNormBackwardCase(s, act));
      cases.push_back(LayerNormBackwardCase(s, act));
    }
    for (const NormShape& s : {NormShape{.rows = 5, .width = 33, .residual = true, .adds_one = true},
                               NormShape{.rows = 7, .width = 13, .heads = 3, .strided = true, .adds_one = true},
                               NormShape{.rows = 3, .width = 9000, .adds_one = true}}) {
      cases.push_back(RmsNormForwardCase(s, act));
      cases.push_back(RmsNormBackwardCase(s, act));
    }
    const NormShape onto = {.rows = 6, .width = 35, .residual = true, .onto_residual = true};
    cases.push_back(RmsNormBackwardCase(onto, act));
    cases.push_back(LayerNormBackwardCase(onto, act));
    const NormShape frozen = {.rows = 33, .width = 18, .frozen_weight = true, .frozen_bias = true};
    cases.push_back(RmsNormBackwardCase(frozen, act));
    cases.push_back(LayerNormBackwardCase(frozen, act));
    cases.push_back(LayerNormBackwardCase({.rows = 33, .width = 18, .accumulate = true, .frozen_bias = true}, act));
    cases.push_back(LayerNormBackwardCase({.rows = 33, .width = 18, .frozen_weight = true}, act));
    cases.push_back(LayerNormBackwardCase({.rows = 5, .width = 9000, .frozen_weight = true}, act));
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Norm, OpConformance, ::testing::ValuesIn(NormCases()), CaseName);

constexpr DType kNormWide = DType::kFloat64;

TEST(NormGradient, RmsNormIsTheDerivativeOfItsForward) {
  for (const bool residual : {false, true}) {
    GradientCase c;
    const NormShape s = {.rows = 3, .width = 5, .residual = residual, .adds_one = residual};
    const auto forward = WithOffset(c.memory, s, NormForwardInputs<RmsNormForward>(c.memory, s, kNormWide));
    const Tensor d_y = c.memory.Random(kNormWide, {3, 5});
    const Tensor d_x = c.memory.Output(kNormWide, {3, 5}), d_weight = c.memory.Output(kNormWide, {5});
    // The sum is an output beside y, and its gradient comes back as d_residual.
    const Tensor d_sum = residual ? c.memory.Random(kNormWide, {3, 5}) : Tensor();
    const Tensor source = residual ? forward.sum : forward.x;
    c.forward = {forward};
    c.backward = {RmsNormBackward{.d_y = d_y,
                                  .x = source,
                                  .weight_C = forward.weight_C,
                                  .rstd_R = forward.rstd_R,
                                  .d_residual = d_sum,
                                  .d_x = d_x,
                                  .d_weight_C = d_weight,
                                  .weight_offset = forward.weight_offset}};
    c.outputs = {{forward.y, d_y}};
    c.inputs = {{forward.x, d_x}, {forward.weight_C, d_weight}};
    if (residual) {
      c.outputs.push_back({forward.sum, d_sum});
      c.inputs.push_back({forward.residual, d_x});
    }
    ExpectGradientsMatchFiniteDifferences(c);
  }
}

TEST(NormGradient, LayerNormIsTheDerivativeOfItsForward) {
  for (const bool residual : {false, true}) {
    GradientCase c;
    const NormShape s = {.rows = 3, .width = 6, .residual = residual};
    auto forward = NormForwardInputs<LayerNormForward>(c.memory, s, kNormWide);
    forward.bias_C = c.memory.Random(kNormWide, {6});
    forward.mean_R = c.memory.Output(kNormWide, {3});
    const Tensor d_y = c.memory.Random(kNormWide, {3, 6});
    const Tensor d_x = c.memory.Output(kNormWide, {3, 6}), d_weight = c.memory.Output(kNormWide, {6}),
                 d_bias = c.memory.Output(kNormWide, {6});
    const Tensor d_sum = residual ? c.memory.Random(kNormWide, {3, 6}) : Tensor();
    const Tensor source = residual ? forward.sum : forward.x;
    c.forward = {forward};
    c.backward = {LayerNormBackward{.d_y = d_y,
                                    .x = source,
                                    .weight_C = forward.weight_C,
                                    .mean_R = forward.mean_R,
                                    .rstd_R = forward.rstd_R,
                                    .d_residual = d_sum,
                                    .d_x = d_x,
                                    .d_weight_C = d_weight,
                                    .d_bias_C = d_bias}};
    c.outputs = {{forward.y, d_y}};
    c.inputs = {{forward.x, d_x}, {forward.weight_C, d_weight}, {forward.bias_C, d_bias}};
    if (residual) {
      c.outputs.push_back({forward.sum, d_sum});
      c.inputs.push_back({forward.residual, d_x});
    }
    ExpectGradientsMatchFiniteDifferences(c);
  }
}

// Activation checkpointing with BLOCK relies on this: a norm recomputed from the stored sum has the bits of the one
// that made the sum.
TEST(NormRecompute, FromTheStoredSumChangesNoBits) {
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    TestMemory memory;
    const NormShape s = {.rows = 5, .width = 37, .residual = true};
    auto op = NormForwardInputs<RmsNormForward>(memory, s, DType::kBFloat16);
    std::vector<std::byte> first = RunOnBackend(backend.name, memory, op);
    const Tensor sum = memory.Bind(op.sum, first.data());
    const Tensor weight = memory.Bind(op.weight_C, first.data());
    std::vector<double> sums, weights;
    for (int64_t i = 0; i < sum.elements(); ++i) sums.push_back(ElementOf(sum, i));
    for (int64_t i = 0; i < weight.elements(); ++i) weights.push_back(ElementOf(weight, i));
    TestMemory recompute;
    RmsNormForward from_sum;
    from_sum.x = recompute.Values(DType::kBFloat16, {5, 37}, sums);
    from_sum.weight_C = recompute.Values(DType::kBFloat16, {37}, weights);
    from_sum.y = recompute.Output(DType::kBFloat16, {5, 37});
    from_sum.rstd_R = recompute.Output(DType::kFloat32, {5});
    from_sum.epsilon = op.epsilon;
    std::vector<std::byte> second = RunOnBackend(backend.name, recompute, from_sum);
    for (int64_t i = 0; i < sum.elements(); ++i) {
      EXPECT_EQ(ElementOf(memory.Bind(op.y, first.data()), i), ElementOf(recompute.Bind(from_sum.y, second.data()), i));
    }
    for (int64_t i = 0; i < 5; ++i) {
      EXPECT_EQ(ElementOf(memory.Bind(op.rstd_R, first.data()), i),
                ElementOf(recompute.Bind(from_sum.rstd_R, second.data()), i));
    }
  }
}

}  // namespace
}  // namespace shale::testing
