// Tests Lion.
#include "gtest/gtest.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_backends.h"
#include "tests/kernels/update_cases.h"
#include "tests/kernels/update_goldens.h"
#include "tests/kernels/update_ops.h"

namespace shale::testing {
namespace {

// m has roundings of 0.75 / 100, 0.1, and twice their sum. p is rounded twice, and the decay, below 0.01, twice. A step
// by the rate is exact. With the seed of the tests no sign depends on rounding.
constexpr UpdateTolerances kUpdateLionTolerances = {.state = {.absolute = 0.4 * kUnit32},
                                                    .master = {.absolute = 3 * 1.1 * kUnit32 + 0.02 * kUnit32}};

INSTANTIATE_TEST_SUITE_P(Lion, OpConformance,
                         ::testing::ValuesIn(UpdateCases(LionRule{.weight_decay = 0.5f}, kUpdateLionTolerances)),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(LionInBf16, OpConformance,
                         ::testing::ValuesIn(UpdateCases(
                             LionRule{.weight_decay = 0.5f, .state_dtype = DType::kBFloat16}, kUpdateLionTolerances)),
                         CaseName);

// Element 0: 0.9 x -0.01 + 0.1 x 0.2 > 0. Element 1: 0.9 x 0.1 - 0.1 x 1.5 < 0, after a decay of 0.1 x 0.1 x 2.
TEST(Lion, FollowsTheTextbook) {
  ByHand hand(LionRule(), {{-0.01, 0.1}});
  EXPECT_NEAR(hand.Weight(0), 1 - 0.1, 1e-7);
  EXPECT_NEAR(hand.State(0, 0), 0.99 * -0.01 + 0.01 * 0.2, 1e-7);
  EXPECT_NEAR(hand.Weight(1), 2 - 0.02 + 0.1, 1e-7);
  EXPECT_NEAR(hand.State(0, 1), 0.99 * 0.1 - 0.01 * 1.5, 1e-7);
}

// Without a gradient and a momentum, Lion has no direction.
TEST(Lion, StandsStillWhereItKnowsNothing) {
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    TestMemory memory;
    Update op = MakeUpdate(memory, LionRule(), Masters::kWeight, {0.5, -0.5, 0.25});
    op.gradient_P = memory.Values(DType::kFloat32, {3}, {0, -0.0, 1e-30});
    op.states[0] = memory.Values(DType::kFloat32, {3}, {0, 0, 0});
    std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
    const std::vector<float> got = MastersOf(op, memory, image);
    EXPECT_EQ(got[0], 0.5f);
    EXPECT_EQ(got[1], -0.5f);
    EXPECT_NEAR(got[2], 0.25f - kRate, kUnit32);
  }
}

// In a step m, below 0.04, has three roundings. The weight, below 1.2, has two, and its decay, below 0.002, has more.
TEST(Lion, StepsAsItsPaperSays) {
  constexpr double kWeight = (4 * (2 * 1.2 + 0.01) + 1.2) * kUnit32, kMomentum = (4 * 3 + 1) * 0.04 * kUnit32;
  TakeGoldenSteps(LionRule{.weight_decay = 0.1f}, {}, 1, [&](const Update& op, auto& memory, auto& image) {
    ExpectWords(memory.Bind(op.weight_P, image.data()), kLionWeights, kWeight);
    ExpectWords(StateOf(op, "m", memory, image), kLionMomentum, kMomentum);
  });
}

}  // namespace
}  // namespace shale::testing
