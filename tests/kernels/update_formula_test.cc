// The update rules against values by hand, and against other implementations of them (update_goldens.h).
#include <bit>
#include <cmath>

#include "gtest/gtest.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_backends.h"
#include "tests/kernels/update_goldens.h"
#include "tests/kernels/update_ops.h"

namespace shale::testing {
namespace {

// An update of two fp64 elements on the reference, of which the second has weight decay.
class ByHand {
 public:
  ByHand(const UpdateRule& rule, std::initializer_list<std::initializer_list<double>> states) {
    constexpr DType kWide = DType::kFloat64;
    op_.rule = rule;
    op_.update_5 = memory_.Values(kWide, {kUpdateSize}, {0.1, 1 - 0.81, 1 - 0.9801, 0.5, 0});
    op_.gradient_P = memory_.Values(kWide, {2}, {0.4, -3.0});
    op_.weight_P = memory_.Values(kWide, {2}, {1.0, 2.0});
    int i = 0;
    for (const auto& state : states) op_.states[i++] = memory_.Values(kWide, {2}, state);
    op_.decayed = Ranges({{8, 9}});
    op_.shard_begin = 7;
    image_ = RunOnReference(memory_, op_);
  }
  // The learning rate is 0.1, and these are the clipped gradients.
  static constexpr double kGradients[] = {0.2, -1.5};
  static constexpr double kWeights[] = {1.0, 2.0};

  double Weight(int i) { return ElementOf(memory_.Bind(op_.weight_P, image_.data()), i); }
  double State(int state, int i) { return ElementOf(memory_.Bind(op_.states[state], image_.data()), i); }

 private:
  TestMemory memory_;
  Update op_;
  std::vector<std::byte> image_;
};

// The second step of torch.optim.AdamW's algorithm for lr 0.1, betas (0.9, 0.99), decay 0.1, eps 1e-8.
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

// Element 0: 0.9 x -0.01 + 0.1 x 0.2 > 0. Element 1: 0.9 x 0.1 - 0.1 x 1.5 < 0, after a decay of 0.1 x 0.1 x 2.
TEST(Lion, FollowsTheTextbook) {
  ByHand hand(LionRule(), {{-0.01, 0.1}});
  EXPECT_NEAR(hand.Weight(0), 1 - 0.1, 1e-7);
  EXPECT_NEAR(hand.State(0, 0), 0.99 * -0.01 + 0.01 * 0.2, 1e-7);
  EXPECT_NEAR(hand.Weight(1), 2 - 0.02 + 0.1, 1e-7);
  EXPECT_NEAR(hand.State(0, 1), 0.99 * 0.1 - 0.01 * 1.5, 1e-7);
}

// Without gradient and momentum Lion has no direction.
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

constexpr int64_t kSize = 300;
constexpr int kSteps = 4;

// uniform() of make_update_goldens.py.
double Uniform(int64_t i, int series) {
  uint32_t x = static_cast<uint32_t>(i + 1000 * series) * 2654435761u;
  x ^= x >> 15;
  x *= 2246822519u;
  x ^= x >> 13;
  return static_cast<double>(x >> 8) * 0x1p-23 - 1;
}

double Gradient(int64_t i, int series) {
  const double u = Uniform(i, series);
  return std::copysign(0.25 + 0.75 * std::abs(u), u);
}

// Takes kSteps steps from zero states. `series` is that of the first gradients. Calls check(op, memory, image) after
// the last step, on every backend.
template <class Check>
void TakeSteps(const UpdateRule& rule, int series, const Check& check) {
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    std::vector<double> weights(kSize), states[kMaxUpdateStates];
    for (int64_t i = 0; i < kSize; ++i) weights[i] = Uniform(i, 0);
    for (int t = 1; t <= kSteps; ++t) {
      TestMemory memory;
      Update op = MakeUpdate(memory, rule, Masters::kWeight, weights);
      double beta1 = 0, beta2 = 0;
      if (const auto* adamw = std::get_if<AdamW8BitRule>(&rule)) beta1 = adamw->beta1, beta2 = adamw->beta2;
      op.update_5 =
          memory.Values(DType::kFloat32, {kUpdateSize}, {kRate, 1 - std::pow(beta1, t), 1 - std::pow(beta2, t), 1, 0});
      std::vector<double> gradients(kSize);
      for (int64_t i = 0; i < kSize; ++i) gradients[i] = Gradient(i, series + t - 1);
      op.gradient_P = memory.Values(DType::kFloat32, {kSize}, gradients);
      for (size_t s = 0; s < StatesOf(rule).size(); ++s) {
        const int64_t size = op.states[s].dim(0);
        states[s].resize(size);
        op.states[s] = memory.Values(op.states[s].dtype, {size}, states[s]);
      }
      op.decayed = Ranges({{10, 280}});
      std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
      for (int64_t i = 0; i < kSize; ++i) weights[i] = ElementOf(memory.Bind(op.weight_P, image.data()), i);
      for (size_t s = 0; s < StatesOf(rule).size(); ++s) {
        const Tensor state = memory.Bind(op.states[s], image.data());
        for (int64_t i = 0; i < state.dim(0); ++i) states[s][i] = ElementOf(state, i);
      }
      if (t == kSteps) check(op, memory, image);
    }
  }
}

void ExpectWords(const Tensor& got, absl::Span<const uint32_t> want, double tolerance) {
  for (int64_t i = 0; i < got.dim(0); ++i) {
    ASSERT_NEAR(ElementOf(got, i), std::bit_cast<float>(want[i]), tolerance) << i;
  }
}

// In a step d, below 1.2, the momentum, below 4, and Nesterov's direction, below 4.6, have roundings of 1.2, 0.1, 3.6,
// 4, 3.6 and 4.6 units: 18. Errors of a momentum persist: 4 steps give 72. The weight takes a hundredth of each step's,
// and two roundings of its own, below 1.2. The goldens are rounded once more.
TEST(Sgd, StepsAsPyTorchDoes) {
  constexpr double kWeight = (kRate * 4 * 72 + 4 * 2 * 1.2 + 1.2) * kUnit32, kMomentum = (72 + 4) * kUnit32;
  for (const bool nesterov : {false, true}) {
    SCOPED_TRACE(nesterov);
    TakeSteps(SgdRule{.weight_decay = 0.1f, .nesterov = nesterov}, 1, [&](const Update& op, auto& memory, auto& image) {
      ExpectWords(memory.Bind(op.weight_P, image.data()), nesterov ? kNesterovWeights : kHeavyBallWeights, kWeight);
      ExpectWords(StateOf(op, "momentum", memory, image), nesterov ? kNesterovMomentum : kHeavyBallMomentum, kMomentum);
    });
  }
}

// m, below 0.04, has three roundings in a step. The weight, below 1.2, has two, and those of its decay, below 0.002.
TEST(Lion, StepsAsItsPaperSays) {
  constexpr double kWeight = (4 * (2 * 1.2 + 0.01) + 1.2) * kUnit32, kMomentum = (4 * 3 + 1) * 0.04 * kUnit32;
  TakeSteps(LionRule{.weight_decay = 0.1f}, 1, [&](const Update& op, auto& memory, auto& image) {
    ExpectWords(memory.Bind(op.weight_P, image.data()), kLionWeights, kWeight);
    ExpectWords(StateOf(op, "m", memory, image), kLionMomentum, kMomentum);
  });
}

// No ratio of the goldens lies so near a boundary that rounding could decide its code. Scales below 1 have five
// roundings a step; the step of a weight, below 4 rate (|m| < 1 and sqrt(v) > 0.05 before their corrections), some
// eighteen, and the weight three.
TEST(AdamW8Bit, StepsAsBitsandbytesStoresItsStates) {
  constexpr double kWeight = (4 * 4 * kRate * 18 + 4 * 3 * 1.2) * kUnit32, kScale = 4 * 5 * kUnit32;
  TakeSteps(AdamW8BitRule(), kAdamW8BitSeries, [&](const Update& op, auto& memory, auto& image) {
    ExpectWords(memory.Bind(op.weight_P, image.data()), kAdamW8BitWeights, kWeight);
    ExpectWords(StateOf(op, "m_scale", memory, image), kAdamW8BitMScales, kScale);
    ExpectWords(StateOf(op, "v_scale", memory, image), kAdamW8BitVScales, kScale);
    for (int64_t i = 0; i < kSize; ++i) {
      ASSERT_EQ(ElementOf(StateOf(op, "m", memory, image), i), kAdamW8BitM[i]) << i;
      ASSERT_EQ(ElementOf(StateOf(op, "v", memory, image), i), kAdamW8BitV[i]) << i;
    }
  });
}

}  // namespace
}  // namespace shale::testing
