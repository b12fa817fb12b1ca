// Tests SquaredError.
#include <cmath>

#include "gtest/gtest.h"
#include "kernels/ops/loss.h"
#include "tests/kernels/gradient_check.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

struct SquaredErrorShape {
  int64_t rows, columns;
  bool gradient = true;
  bool strided = false;
  bool weighted = false;
};

OpCase MakeSquaredErrorCase(const SquaredErrorShape& s, DType act) {
  OpCase c;
  c.name = NameOf(act) + "_" + std::to_string(s.rows) + "x" + std::to_string(s.columns) +
           (s.gradient ? "_gradient" : "") + (s.strided ? "_strided" : "") + (s.weighted ? "_weighted" : "");
  SquaredError op;
  op.prediction_TD = c.memory.Random(act, {s.rows, s.columns}, -4, 4);
  op.targets_TD = s.strided ? c.memory.Random(DType::kFloat32, {s.rows, 2 * s.columns}, -4, 4).Slice(1, 1, s.columns)
                            : c.memory.Random(DType::kFloat32, {s.rows, s.columns}, -4, 4);
  if (s.weighted) {
    std::vector<double> weights;
    for (int64_t t = 0; t < s.rows; ++t) weights.push_back(t % 3 == 0 ? 0 : 0.75 - 0.625 * static_cast<double>(t % 4));
    op.weights_T = c.memory.Values(DType::kFloat32, {s.rows}, weights);
  }
  op.scale_1 = c.memory.Values(DType::kFloat32, {1}, {0.37});
  op.loss_T = c.memory.Output(DType::kFloat32, {s.rows});
  if (s.gradient) op.d_prediction_TD = c.memory.Output(act, {s.rows, s.columns});
  c.op = op;
  // A difference is rounded once, and squared twice as wrong. All terms of a sum, at most 1,024 in fp32, are positive.
  const double terms = std::min<double>(1024, static_cast<double>(s.columns));
  c.tolerances["loss"] = {.relative = (terms + 6) * kUnit32};
  // A difference, a factor and a product are rounded.
  c.tolerances["d_prediction"] = {.absolute = 0x1p-50, .relative = 4 * kUnit32};
  return c;
}

std::vector<OpCase> SquaredErrorCases() {
  std::vector<OpCase> cases;
  for (const DType act : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const SquaredErrorShape& s :
         std::vector<SquaredErrorShape>{{.rows = 1, .columns = 1},
                                        {.rows = 7, .columns = 3, .strided = true},
                                        {.rows = 9, .columns = 33, .weighted = true},
                                        {.rows = 5, .columns = 64, .strided = true, .weighted = true},
                                        {.rows = 3, .columns = 2050},
                                        {.rows = 6, .columns = 100, .gradient = false, .weighted = true}}) {
      cases.push_back(MakeSquaredErrorCase(s, act));
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(SquaredError, OpConformance, ::testing::ValuesIn(SquaredErrorCases()), CaseName);

TEST(SquaredErrorTest, GradientIsTheDerivativeOfTheLoss) {
  constexpr DType kWide = DType::kFloat64;
  for (const bool weighted : {false, true}) {
    GradientCase c;
    const Tensor prediction = c.memory.Random(kWide, {4, 5}), gradient = c.memory.Output(kWide, {4, 5});
    const Tensor loss = c.memory.Output(kWide, {4});
    SquaredError op{.prediction_TD = prediction,
                    .targets_TD = c.memory.Random(kWide, {4, 5}),
                    .scale_1 = c.memory.Values(kWide, {1}, {1}),
                    .loss_T = loss};
    if (weighted) op.weights_T = c.memory.Values(kWide, {4}, {0.5, 3, 0, -2});
    c.forward = {op};
    op.d_prediction_TD = gradient;
    c.backward = {op};
    c.outputs = {{loss, Tensor()}};
    c.inputs = {{prediction, gradient}};
    ExpectGradientsMatchFiniteDifferences(c);
  }
}

// The expected values are worked out by hand, to check the reference too. The gradient takes the place of the
// prediction, and a weight of 0 hides a row that is not finite.
TEST(SquaredErrorTest, KnownValuesInPlace) {
  for (const DType act : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    TestMemory memory;
    const Tensor prediction = memory.Values(act, {3, 2}, {1, 2, 5, 0, std::nan(""), 1});
    const SquaredError op = {.prediction_TD = prediction,
                             .targets_TD = memory.Values(DType::kFloat32, {3, 2}, {0, 4, 2, 0, 1, 1}),
                             .scale_1 = memory.Values(DType::kFloat32, {1}, {0.5}),
                             .loss_T = memory.Output(DType::kFloat32, {3}),
                             .d_prediction_TD = prediction,
                             .weights_T = memory.Values(DType::kFloat32, {3}, {1, -2, 0})};
    const std::vector<double> losses = {2.5, -9, 0}, gradients = {0.5, -1, -3, 0, 0, 0};
    for (const TestBackend& backend : TestBackends()) {
      std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
      const Tensor loss = memory.Bind(op.loss_T, image.data()), d = memory.Bind(prediction, image.data());
      for (int64_t i = 0; i < 3; ++i) EXPECT_EQ(ElementOf(loss, i), losses[i]) << backend.name << " " << i;
      for (int64_t i = 0; i < 6; ++i) EXPECT_EQ(ElementOf(d, i), gradients[i]) << backend.name << " " << i;
    }
  }
}

// A prediction that is not finite must show in the loss: that is how a step learns that it must be skipped.
TEST(SquaredErrorTest, PredictionsThatAreNotFiniteGiveALossThatIsNot) {
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    TestMemory memory;
    const SquaredError op = {.prediction_TD = memory.Values(DType::kFloat32, {1, 3}, {1, bad, 2}),
                             .targets_TD = memory.Random(DType::kFloat32, {1, 3}),
                             .scale_1 = memory.Values(DType::kFloat32, {1}, {1}),
                             .loss_T = memory.Output(DType::kFloat32, {1})};
    for (const TestBackend& backend : TestBackends()) {
      std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
      EXPECT_FALSE(std::isfinite(ElementOf(memory.Bind(op.loss_T, image.data()), 0))) << backend.name;
    }
  }
}

}  // namespace
}  // namespace shale::testing
