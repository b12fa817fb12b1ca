// Tests CrossEntropy.
#include <cmath>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/loss.h"
#include "tests/kernels/gradient_check.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/run_errors.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

struct CrossEntropyShape {
  int64_t rows, vocabulary;
  bool gradient = true;
  bool strided = false;
  double range = 1;  // Logits lie in [-range, range).
  bool weighted = false;
  double cap = 0;
};

OpCase MakeCrossEntropyCase(const CrossEntropyShape& s, DType act) {
  OpCase c;
  c.name = NameOf(act) + "_" + std::to_string(s.rows) + "x" + std::to_string(s.vocabulary) +
           (s.gradient ? "_gradient" : "") + (s.strided ? "_strided" : "") + (s.weighted ? "_weighted" : "") +
           "_range" + std::to_string(static_cast<int>(s.range)) + (s.cap > 0 ? "_capped" : "");
  CrossEntropy op{.gradient = s.gradient, .cap = static_cast<float>(s.cap)};
  op.logits_TV = c.memory.Random(act, {s.rows, s.vocabulary}, -s.range, s.range);
  // Every fourth row or so is ignored.
  const int64_t ignored = std::max<int64_t>(1, s.vocabulary / 3);
  if (s.strided) {
    op.targets_T = c.memory.RandomIntegers(DType::kInt32, {s.rows, 3}, -ignored, s.vocabulary).Slice(1, 1, 1);
    op.targets_T.rank = 1;
  } else {
    op.targets_T = c.memory.RandomIntegers(DType::kInt32, {s.rows}, -ignored, s.vocabulary);
  }
  if (s.weighted) {
    // Every third weight is 0, and the others have both signs.
    std::vector<double> weights;
    for (int64_t t = 0; t < 3 * s.rows; ++t)
      weights.push_back(t % 9 < 3 ? 0 : 0.75 - 0.625 * static_cast<double>(t % 4));
    op.weights_T = c.memory.Values(DType::kFloat32, {s.rows, 3}, weights).Slice(1, 2, 1);
    op.weights_T.rank = 1;
  }
  op.scale_1 = c.memory.Values(DType::kFloat32, {1}, {0.37});
  op.loss_T = c.memory.Output(DType::kFloat32, {s.rows});
  c.op = op;
  // An exponential errs by at most 4 units. Its argument x - max, of up to 2 range, is rounded, and as a power of two
  // multiplied by log2(e) in fp32, which errs by 1.2 units more. Sums have 1,024
  // terms, or V if that is less.
  // A cap errs by 4 units of tanh, and by the rounding of its argument and result.
  const double exponential = (4 + 4.4 * s.range + 12 * s.cap) * kUnit32;
  const double sum = exponential + std::min<double>(1024, static_cast<double>(s.vocabulary)) * kUnit32;
  c.tolerances["loss"] = {.absolute = s.weighted ? 2 * sum : sum, .relative = 2 * kUnit32};
  // p - 1 is computed in fp64.
  // Up to |logit| = 2.5 cap, 1 - tanh^2 is at least 0.026, and so errs by at most 8 / 0.026 units of itself.
  const double slope = s.cap > 0 ? 320 * kUnit32 : 0;
  c.tolerances["logits"] = {.absolute = 0x1p-50, .relative = sum + exponential + 4 * kUnit32 + slope};
  return c;
}

std::vector<OpCase> CrossEntropyCases() {
  std::vector<OpCase> cases;
  for (const DType act : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const CrossEntropyShape& s :
         std::vector<CrossEntropyShape>{{.rows = 1, .vocabulary = 1},
                                        {.rows = 3, .vocabulary = 2},
                                        {.rows = 7, .vocabulary = 13, .strided = true},
                                        {.rows = 5, .vocabulary = 64, .range = 30},
                                        {.rows = 4, .vocabulary = 1031, .gradient = false},
                                        {.rows = 4, .vocabulary = 3001, .strided = true, .range = 5},
                                        {.rows = 3, .vocabulary = 17, .gradient = false, .range = 1000},
                                        {.rows = 3, .vocabulary = 17, .range = 1000},
                                        {.rows = 11, .vocabulary = 13, .weighted = true},
                                        {.rows = 6, .vocabulary = 1031, .strided = true, .weighted = true},
                                        {.rows = 6, .vocabulary = 65, .gradient = false, .weighted = true},
                                        {.rows = 1, .vocabulary = 1, .cap = 2},
                                        {.rows = 7, .vocabulary = 13, .strided = true, .range = 5, .cap = 2},
                                        {.rows = 4, .vocabulary = 3001, .range = 70, .weighted = true, .cap = 30},
                                        {.rows = 4, .vocabulary = 1031, .gradient = false, .range = 5, .cap = 3}}) {
      cases.push_back(MakeCrossEntropyCase(s, act));
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(CrossEntropy, OpConformance, ::testing::ValuesIn(CrossEntropyCases()), CaseName);

class CrossEntropyGradient : public ::testing::TestWithParam<std::pair<bool, float>> {};  // Weights, cap.

TEST_P(CrossEntropyGradient, IsTheDerivativeOfTheLoss) {
  constexpr DType kWide = DType::kFloat64;
  GradientCase c;
  Tensor weights;
  if (GetParam().first) weights = c.memory.Values(kWide, {4}, {0.5, 3, 0, -2});
  const Tensor logits = c.memory.Random(kWide, {4, 5}), gradient = c.memory.Output(kWide, {4, 5});
  const Tensor targets = c.memory.Values(DType::kInt32, {4}, {2, -1, 0, 4});
  const Tensor scale = c.memory.Values(kWide, {1}, {1.0}), loss = c.memory.Output(kWide, {4});
  CrossEntropy op{.logits_TV = logits,
                  .targets_T = targets,
                  .scale_1 = scale,
                  .loss_T = loss,
                  .gradient = false,
                  .weights_T = weights,
                  .cap = GetParam().second};
  c.forward = {op};
  op.logits_TV = gradient;
  op.gradient = true;
  c.backward = {Copy{.from = logits, .to = gradient}, op};
  c.outputs = {{loss, Tensor()}};
  c.inputs = {{logits, gradient}};
  ExpectGradientsMatchFiniteDifferences(c);
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutWeights, CrossEntropyGradient,
                         ::testing::Values(std::pair(false, 0.0f), std::pair(true, 0.0f), std::pair(true, 0.75f)));

// The expected values are worked out by hand, to check the reference too.
TEST(CrossEntropyTest, KnownValues) {
  TestMemory memory;
  const double log2 = std::log(2.0), log3 = std::log(3.0);
  const CrossEntropy op = {.logits_TV = memory.Values(DType::kFloat32, {3, 3}, {0, log2, log3, 5, 5, 5, 1, 2, 3}),
                           .targets_T = memory.Values(DType::kInt32, {3}, {1, 2, -7}),
                           .scale_1 = memory.Values(DType::kFloat32, {1}, {6}),
                           .loss_T = memory.Output(DType::kFloat32, {3})};
  const std::vector<double> losses = {log3, log3, 0}, gradients = {1, -4, 3, 2, 2, -4, 0, 0, 0};
  for (const TestBackend& backend : TestBackends()) {
    std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
    const Tensor loss = memory.Bind(op.loss_T, image.data()), gradient = memory.Bind(op.logits_TV, image.data());
    for (int64_t i = 0; i < 3; ++i) EXPECT_NEAR(ElementOf(loss, i), losses[i], 1e-6) << backend.name << " " << i;
    for (int64_t i = 0; i < 9; ++i) EXPECT_NEAR(ElementOf(gradient, i), gradients[i], 3e-6) << backend.name << " " << i;
  }
}

TEST(CrossEntropyTest, WeightsMultiplyLossAndGradientAndAZeroHidesTheRow) {
  TestMemory memory;
  const double log2 = std::log(2.0), log3 = std::log(3.0), nan = std::nan("");
  const CrossEntropy op = {.logits_TV = memory.Values(DType::kFloat32, {3, 3}, {0, log2, log3, 5, 5, 5, 1, nan, 3}),
                           .targets_T = memory.Values(DType::kInt32, {3}, {1, 2, 0}),
                           .scale_1 = memory.Values(DType::kFloat32, {1}, {6}),
                           .loss_T = memory.Output(DType::kFloat32, {3}),
                           .weights_T = memory.Values(DType::kFloat32, {3}, {-0.5, 2, 0})};
  const std::vector<double> losses = {-log3 / 2, 2 * log3, 0}, gradients = {-0.5, 2, -1.5, 4, 4, -8, 0, 0, 0};
  for (const TestBackend& backend : TestBackends()) {
    std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
    const Tensor loss = memory.Bind(op.loss_T, image.data()), gradient = memory.Bind(op.logits_TV, image.data());
    for (int64_t i = 0; i < 3; ++i) EXPECT_NEAR(ElementOf(loss, i), losses[i], 1e-6) << backend.name << " " << i;
    for (int64_t i = 0; i < 9; ++i) EXPECT_NEAR(ElementOf(gradient, i), gradients[i], 5e-6) << backend.name << " " << i;
  }
}

TEST(CrossEntropyTest, WeightsOfOneChangeNoBits) {
  for (const DType act : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    TestMemory memory;
    CrossEntropy op = {.logits_TV = memory.Random(act, {5, 61}, -4, 4),
                       .targets_T = memory.RandomIntegers(DType::kInt32, {5}, -20, 61),
                       .scale_1 = memory.Values(DType::kFloat32, {1}, {0.37}),
                       .loss_T = memory.Output(DType::kFloat32, {5})};
    const Tensor ones = memory.Values(DType::kFloat32, {5}, {1, 1, 1, 1, 1});
    for (const TestBackend& backend : TestBackends()) {
      op.weights_T = Tensor();
      const std::vector<std::byte> without = RunOnBackend(backend.name, memory, op);
      op.weights_T = ones;
      EXPECT_EQ(RunOnBackend(backend.name, memory, op), without) << backend.name;
    }
  }
}

// An evaluation asks for no gradient and must report the loss that a step would. A vocabulary of 1,061 takes a part of
// the sum, vector pairs, vectors and a remainder.
TEST(CrossEntropyTest, LossHasTheSameBitsWithAndWithoutAGradient) {
  for (const DType act : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    TestMemory memory;
    CrossEntropy op = {.logits_TV = memory.Random(act, {5, 1061}, -4, 4),
                       .targets_T = memory.RandomIntegers(DType::kInt32, {5}, 0, 1061),
                       .scale_1 = memory.Values(DType::kFloat32, {1}, {1}),
                       .loss_T = memory.Output(DType::kFloat32, {5})};
    for (const TestBackend& backend : TestBackends()) {
      op.gradient = true;
      std::vector<std::byte> with = RunOnBackend(backend.name, memory, op);
      op.gradient = false;
      std::vector<std::byte> without = RunOnBackend(backend.name, memory, op);
      const Tensor loss = memory.Bind(op.loss_T, with.data()), same = memory.Bind(op.loss_T, without.data());
      for (int64_t i = 0; i < 5; ++i) EXPECT_EQ(ElementOf(loss, i), ElementOf(same, i)) << backend.name << " " << i;
    }
  }
}

// Values that are not finite must show in the loss: that is how a step learns that it must be skipped.
TEST(CrossEntropyTest, LogitsThatAreNotFiniteGiveALossThatIsNot) {
  for (const double bad : {std::nan(""), HUGE_VAL}) {
    for (const int64_t at : {0, 5, 19}) {
      TestMemory memory;
      std::vector<double> logits(20, 0.5);
      logits[at] = bad;
      for (const DType act : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
        const CrossEntropy op = {.logits_TV = memory.Values(act, {1, 20}, logits),
                                 .targets_T = memory.Values(DType::kInt32, {1}, {3}),
                                 .scale_1 = memory.Values(DType::kFloat32, {1}, {1}),
                                 .loss_T = memory.Output(DType::kFloat32, {1})};
        for (const TestBackend& backend : TestBackends()) {
          std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
          EXPECT_FALSE(std::isfinite(ElementOf(memory.Bind(op.loss_T, image.data()), 0))) << backend.name << " " << at;
          EXPECT_TRUE(std::isnan(ElementOf(memory.Bind(op.logits_TV, image.data()), 3))) << backend.name << " " << at;
        }
      }
    }
  }
}

TEST(CrossEntropyTest, TargetsPastTheVocabularyAreErrorsThatWriteNothing) {
  TestMemory memory;
  const CrossEntropy op = {.logits_TV = memory.Random(DType::kFloat32, {2, 5}),
                           .targets_T = memory.Values(DType::kInt32, {2}, {-5, 5}),
                           .scale_1 = memory.Values(DType::kFloat32, {1}, {1}),
                           .loss_T = memory.Output(DType::kFloat32, {2})};
  ExpectRunFails(memory, op, {"targets[1]", "is 5", "below 5"});
}

}  // namespace
}  // namespace shale::testing
