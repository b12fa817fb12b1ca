// Tests SGD without momentum, with momentum, and with Nesterov's step.
#include "gtest/gtest.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/update_cases.h"
#include "tests/kernels/update_goldens.h"
#include "tests/kernels/update_ops.h"

namespace shale::testing {
namespace {

// d = 0.75 + 0.5 p < 1.3 has three roundings, of 0.75, 0.55 and 1.3: 2.6 units. The momentum, below 1.4, adds those of
// 0.1 and 1.4, and is off by less than 4.1 units. The direction with Nesterov's step is below 2.6; it adds 0.9 of those
// units, and roundings of 1.3 and 2.6: less than 12 units. Its product with the rate is rounded once, and p once.
constexpr UpdateTolerances kUpdateSgdTolerances = {
    .state = {.absolute = (4.1 + 1.4) * kUnit32},
    .master = {.absolute = kRate * (12 + 2.6) * kUnit32 + 2 * 1.1 * kUnit32}};

INSTANTIATE_TEST_SUITE_P(Sgd, OpConformance,
                         ::testing::ValuesIn(UpdateCases(SgdRule{.weight_decay = 0.5f}, kUpdateSgdTolerances)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(Nesterov, OpConformance,
                         ::testing::ValuesIn(UpdateCases(SgdRule{.weight_decay = 0.5f, .nesterov = true},
                                                         kUpdateSgdTolerances)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(SgdWithoutMomentum, OpConformance,
                         ::testing::ValuesIn(UpdateCases(SgdRule{.momentum = 0, .weight_decay = 0.5f},
                                                         kUpdateSgdTolerances)),
                         CaseName);

// Element 0: d = 0.2. Element 1: d = -1.5 + 0.1 x 2 = -1.3.
TEST(Sgd, FollowsTheTextbook) {
  ByHand plain(SgdRule{.momentum = 0, .weight_decay = 0.1f}, {});
  EXPECT_NEAR(plain.Weight(0), 1 - 0.1 * 0.2, 1e-7);
  EXPECT_NEAR(plain.Weight(1), 2 + 0.1 * 1.3, 1e-7);
  // The momentum becomes 0.9 x 0.5 + 0.2 = 0.65, and 0.9 x 2 - 1.3 = 0.5.
  ByHand momentum(SgdRule{.weight_decay = 0.1f}, {{0.5, 2.0}});
  EXPECT_NEAR(momentum.State(0, 0), 0.65, 1e-7);
  EXPECT_NEAR(momentum.State(0, 1), 0.5, 1e-7);
  EXPECT_NEAR(momentum.Weight(0), 1 - 0.065, 1e-7);
  EXPECT_NEAR(momentum.Weight(1), 2 - 0.05, 1e-7);
  ByHand nesterov(SgdRule{.weight_decay = 0.1f, .nesterov = true}, {{0.5, 2.0}});
  EXPECT_NEAR(nesterov.State(0, 1), 0.5, 1e-7);
  EXPECT_NEAR(nesterov.Weight(0), 1 - 0.1 * (0.2 + 0.9 * 0.65), 1e-7);
  EXPECT_NEAR(nesterov.Weight(1), 2 - 0.1 * (-1.3 + 0.9 * 0.5), 1e-7);
}

// In a step, d (below 1.2), the momentum (below 4) and Nesterov's direction (below 4.6) have roundings of 1.2, 0.1,
// 3.6, 4, 3.6 and 4.6 units, 18 in all. Errors of a momentum persist, so 4 steps give 72. The weight takes a hundredth
// of each step's error, and two roundings of its own, below 1.2. The goldens are rounded once more.
TEST(Sgd, StepsAsPyTorchDoes) {
  constexpr double kWeight = (kRate * 4 * 72 + 4 * 2 * 1.2 + 1.2) * kUnit32, kMomentum = (72 + 4) * kUnit32;
  for (const bool nesterov : {false, true}) {
    SCOPED_TRACE(nesterov);
    TakeGoldenSteps(
        SgdRule{.weight_decay = 0.1f, .nesterov = nesterov}, {}, 1, [&](const Update& op, auto& memory, auto& image) {
          ExpectWords(memory.Bind(op.weight_P, image.data()), nesterov ? kNesterovWeights : kHeavyBallWeights, kWeight);
          ExpectWords(StateOf(op, "momentum", memory, image), nesterov ? kNesterovMomentum : kHeavyBallMomentum,
                      kMomentum);
        });
  }
}

}  // namespace
}  // namespace shale::testing
