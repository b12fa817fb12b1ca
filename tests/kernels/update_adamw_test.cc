// Tests AdamW.
#include <cmath>

#include "gtest/gtest.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/update_cases.h"
#include "tests/kernels/update_ops.h"

namespace shale::testing {
namespace {

// m and v have three roundings of values below 1. The step is rate / 0.19 m / (sqrt(v) / 0.31) with |m| < 0.2 and
// sqrt(v) > 0.09. So it is below 4 rate, with some ten roundings. p itself is rounded twice.
constexpr UpdateTolerances kUpdateAdamwTolerances = {.state = {.absolute = 4 * kUnit32},
                                                     .master = {.absolute = 4 * kRate * 16 * kUnit32 + 2 * kUnit32}};

INSTANTIATE_TEST_SUITE_P(AdamW, OpConformance,
                         ::testing::ValuesIn(UpdateCases(AdamWRule{.weight_decay = 0.5f}, kUpdateAdamwTolerances)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(AdamWInBf16, OpConformance,
                         ::testing::ValuesIn(UpdateCases(
                             AdamWRule{.weight_decay = 0.5f, .state_dtype = DType::kBFloat16}, kUpdateAdamwTolerances)),
                         CaseName);

// Computes the second step of torch.optim.AdamW's algorithm for lr 0.1, betas (0.9, 0.99), decay 0.1, eps 1e-8.
TEST(AdamW, FollowsTheTextbook) {
  const double ms[] = {0.02, 0.1}, vs[] = {0.0004, 0.01};
  ByHand hand(AdamWRule{.beta2 = 0.99f}, {{ms[0], ms[1]}, {vs[0], vs[1]}});
  for (int i = 0; i < 2; ++i) {
    const double g = ByHand::kGradients[i], w = ByHand::kWeights[i];
    const double m = 0.9 * ms[i] + 0.1 * g, v = 0.99 * vs[i] + 0.01 * g * g;
    const double p = w - (i == 1 ? 0.1 * 0.1 * w : 0) - 0.1 * (m / 0.19) / (std::sqrt(v / 0.0199) + 1e-8);
    EXPECT_NEAR(hand.State(0, i), m, 1e-7);
    EXPECT_NEAR(hand.State(1, i), v, 1e-7);
    EXPECT_NEAR(hand.Weight(i), p, 1e-6);  // The betas are fp32.
  }
}

}  // namespace
}  // namespace shale::testing
