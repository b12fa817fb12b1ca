#include "gtest/gtest.h"
#include "tests/kernels/gradient_check.h"
#include "tests/kernels/op_conformance.h"

namespace shale::testing {
namespace {

struct GroupShape {
  int64_t samples, positions, channels, groups;
  bool accumulate = false;

  int64_t group_size() const { return positions * (channels / groups); }
  std::string Name(DType act) const {
    return NameOf(act) + "_" + std::to_string(samples) + "x" + std::to_string(positions) + "x" +
           std::to_string(channels) + "_groups" + std::to_string(groups) + (accumulate ? "_accumulate" : "");
  }
};

constexpr double kEpsilon = 1e-3;

GroupNormForward ForwardInputs(TestMemory& memory, const GroupShape& s, DType act) {
  const DType statistic = act == DType::kFloat64 ? act : DType::kFloat32;
  return {.x_BLC = memory.Random(act, {s.samples, s.positions, s.channels}),
          .weight_C = memory.Random(act, {s.channels}, 0.5, 1.5),
          .bias_C = memory.Random(act, {s.channels}),
          .y_BLC = memory.Output(act, {s.samples, s.positions, s.channels}),
          .mean_BG = memory.Output(statistic, {s.samples, s.groups}),
          .rstd_BG = memory.Output(statistic, {s.samples, s.groups}),
          .epsilon = static_cast<float>(kEpsilon)};
}

// The errors are those of LayerNorm, with n the size of a group. Small groups may have any variance down to 0, where
// epsilon bounds rstd by 32.
OpCase ForwardCase(const GroupShape& s, DType act) {
  OpCase c{.name = "GroupNormForward_" + s.Name(act)};
  c.op = ForwardInputs(c.memory, s, act);
  const double rstd = s.group_size() < 7 ? 32 : 3;
  const double mean_error = (static_cast<double>(s.group_size()) + 2) * kUnit32;
  const double rstd_error = mean_error + 4 * kUnit32 + 2 * mean_error * rstd;
  c.tolerances = {{"mean", {.absolute = mean_error}},
                  {"rstd", {.relative = rstd_error}},
                  {"y", {.absolute = 1.5 * rstd * mean_error + 3 * rstd * rstd_error, .relative = 4 * kUnit32}}};
  return c;
}

// |d_y weight| < 1.5, |n| < 6, rstd < 3; see NormBackwardTolerances in norm_test.cc.
OpCase BackwardCase(const GroupShape& s, DType act) {
  OpCase c{.name = "GroupNormBackward_" + s.Name(act)};
  const auto gradient = [&] {
    return s.accumulate ? c.memory.Random(DType::kFloat32, {s.channels})
                        : c.memory.Output(DType::kFloat32, {s.channels});
  };
  GroupNormBackward op;
  op.d_y_BLC = c.memory.Random(act, {s.samples, s.positions, s.channels});
  op.x_BLC = c.memory.Random(act, {s.samples, s.positions, s.channels});
  op.weight_C = c.memory.Random(act, {s.channels}, 0.5, 1.5);
  op.mean_BG = c.memory.Random(DType::kFloat32, {s.samples, s.groups});
  op.rstd_BG = c.memory.Random(DType::kFloat32, {s.samples, s.groups}, 1, 3);
  op.d_x_BLC = c.memory.Output(act, {s.samples, s.positions, s.channels});
  op.d_weight_C = gradient();
  op.d_bias_C = gradient();
  op.accumulate = s.accumulate;
  c.op = op;
  const double mean_error = (static_cast<double>(s.group_size()) + 4) * kUnit32 * 9;
  const double rows = static_cast<double>(s.samples * s.positions);
  const Tolerance columns = {.absolute = (rows + 4) * kUnit32 * 6 * rows, .relative = kUnit32};
  c.tolerances = {{"d_x", {.absolute = 18 * mean_error + 32 * kUnit32}}, {"d_weight", columns}, {"d_bias", columns}};
  return c;
}

std::vector<OpCase> GroupNormCases() {
  std::vector<OpCase> cases;
  for (const DType act : {DType::kFloat32, DType::kBFloat16}) {
    for (const GroupShape& s : {GroupShape{1, 1, 1, 1},
                                {2, 3, 6, 2, true},
                                {3, 5, 35, 7},
                                {2, 7, 16, 16, true},
                                {1, 1300, 12, 3},
                                {3, 67, 129, 1, true}}) {
      if (!s.accumulate) cases.push_back(ForwardCase(s, act));
      cases.push_back(BackwardCase(s, act));
    }
    cases.push_back(ForwardCase({2, 700, 33, 11}, act));
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(GroupNorm, OpConformance, ::testing::ValuesIn(GroupNormCases()), CaseName);

TEST(GroupNormGradient, IsTheDerivativeOfItsForward) {
  GradientCase c;
  constexpr DType kWide = DType::kFloat64;
  const GroupNormForward forward = ForwardInputs(c.memory, {2, 3, 6, 2}, kWide);
  const Tensor d_y = c.memory.Random(kWide, {2, 3, 6});
  const Tensor d_x = c.memory.Output(kWide, {2, 3, 6});
  const Tensor d_weight = c.memory.Output(kWide, {6}), d_bias = c.memory.Output(kWide, {6});
  c.forward = {forward};
  c.backward = {GroupNormBackward{.d_y_BLC = d_y,
                                  .x_BLC = forward.x_BLC,
                                  .weight_C = forward.weight_C,
                                  .mean_BG = forward.mean_BG,
                                  .rstd_BG = forward.rstd_BG,
                                  .d_x_BLC = d_x,
                                  .d_weight_C = d_weight,
                                  .d_bias_C = d_bias}};
  c.outputs = {{forward.y_BLC, d_y}};
  c.inputs = {{forward.x_BLC, d_x}, {forward.weight_C, d_weight}, {forward.bias_C, d_bias}};
  ExpectGradientsMatchFiniteDifferences(c);
}

}  // namespace
}  // namespace shale::testing
