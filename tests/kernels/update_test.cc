// Tests what all update rules have in common. The file of each rule compares it with the reference, with values by
// hand, and with other implementations of it.
#include <bit>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "kernels/step_scalars.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_backends.h"
#include "tests/kernels/update_ops.h"

namespace shale::testing {
namespace {

TEST(Update, SkippedUpdateChangesNothing) {
  for (const UpdateRule& rule : AllRules()) {
    for (const Masters form : kAllMasters) {
      TestMemory memory;
      Update op = MakeUpdate(memory, rule, form, RandomMasters(300));
      op.update_5 = memory.Values(DType::kFloat32, {kUpdateSize}, {kRate, 1, 1, 0, 1});
      for (const TestBackend& backend : TestBackends()) {
        EXPECT_TRUE(RunOnBackend(backend.name, memory, op) == memory.image())
            << backend.name << " " << Name(rule) << " " << Name(form);
      }
    }
  }
}

// The split form holds the fp32 master exactly, and rounds weights in the same way. So both train to the same bits.
TEST(Update, SplitAndFloatMastersHoldTheSameBits) {
  constexpr int64_t kSize = 3000;
  for (const UpdateRule& rule : AllRules()) {
    for (const TestBackend& backend : TestBackends()) {
      SCOPED_TRACE(backend.name + " " + Name(rule));
      std::vector<double> split = RandomMasters(kSize);
      std::vector<double> wide = split;
      for (int step = 0; step < 5; ++step) {
        TestMemory split_memory(step), wide_memory(step);
        Update split_op = MakeUpdate(split_memory, rule, Masters::kSplit, split);
        Update wide_op = MakeUpdate(wide_memory, rule, Masters::kFloat, wide);
        split_op.decayed = wide_op.decayed = Ranges({{100, 2000}});
        std::vector<std::byte> split_image = RunOnBackend(backend.name, split_memory, split_op);
        std::vector<std::byte> wide_image = RunOnBackend(backend.name, wide_memory, wide_op);
        const std::vector<float> split_masters = MastersOf(split_op, split_memory, split_image);
        const std::vector<float> wide_masters = MastersOf(wide_op, wide_memory, wide_image);
        ASSERT_EQ(split_masters, wide_masters) << "step " << step;
        const Tensor split_weight = split_memory.Bind(split_op.weight_P, split_image.data());
        const Tensor wide_weight = wide_memory.Bind(wide_op.weight_P, wide_image.data());
        for (int64_t i = 0; i < kSize; ++i) {
          const BFloat16 weight = split_weight.as<BFloat16>()[i];
          ASSERT_EQ(weight.bits, wide_weight.as<BFloat16>()[i].bits);
          ASSERT_EQ(weight.bits, RoundMaster(wide_masters[i]).bits);
        }
        split.assign(split_masters.begin(), split_masters.end());
        wide.assign(wide_masters.begin(), wide_masters.end());
      }
    }
  }
}

// With no gradient and zero states p does not change, which shows how numbers of all magnitudes are split and rounded.
TEST(Update, EveryMasterSurvivesTheSplit) {
  std::vector<double> masters;
  for (uint32_t upper = 0; upper < 0x10000; upper += 3) {
    for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float p = std::bit_cast<float>(upper << 16 | lower);
      if (std::isfinite(p)) masters.push_back(p);
    }
  }
  const int64_t n = static_cast<int64_t>(masters.size());
  TestMemory memory;
  Update op = MakeUpdate(memory, AdamWRule(), Masters::kSplit, masters);
  const std::vector<double> zeros(n);
  op.gradient_P = memory.Values(DType::kFloat32, {n}, zeros);
  op.states[0] = memory.Values(DType::kFloat32, {n}, zeros);
  op.states[1] = memory.Values(DType::kFloat32, {n}, zeros);
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
    const std::vector<float> got = MastersOf(op, memory, image);
    const auto* weight = memory.Bind(op.weight_P, image.data()).as<BFloat16>();
    for (int64_t i = 0; i < n; ++i) {
      const float want = static_cast<float>(masters[i]);
      ASSERT_EQ(got[i], want);
      ASSERT_EQ(weight[i].bits, RoundMaster(want).bits) << want;
    }
  }
}

// A NaN must not turn into a finite weight, because the trainer would not see it. Here it comes from the weight or from
// the gradient.
TEST(Update, NaNsStayNaNs) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
  constexpr int64_t kSize = 20;
  for (const UpdateRule& rule : AllRules()) {
    for (const Masters form : kAllMasters) {
      TestMemory memory;
      std::vector<double> masters = RandomMasters(kSize), gradients = RandomMasters(kSize);
      masters[3] = gradients[5] = kNaN;
      Update op = MakeUpdate(memory, rule, form, masters);
      op.gradient_P = memory.Values(DType::kFloat32, {kSize}, gradients);
      for (const TestBackend& backend : TestBackends()) {
        SCOPED_TRACE(backend.name + " " + Name(rule) + " " + Name(form));
        std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
        for (const int64_t i : {3, 4, 5}) {
          EXPECT_EQ(std::isnan(MastersOf(op, memory, image)[i]), i != 4);
          EXPECT_EQ(std::isnan(ElementOf(memory.Bind(op.weight_P, image.data()), i)), i != 4);
        }
      }
    }
  }
}

// Threads may divide an update, and a shard may lie anywhere in its group. Neither changes an element.
void ExpectPartsAgree(const UpdateRule& rule, Masters form) {
  constexpr int64_t kSize = 2000, kCut = 768;
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name + " " + Name(rule) + " " + Name(form));
    TestMemory memory;
    Update whole = MakeUpdate(memory, rule, form, RandomMasters(kSize));
    whole.decayed = Ranges({{700, 900}});
    std::vector<std::byte> image = RunOnBackend(backend.name, memory, whole);
    const std::vector<float> want = MastersOf(whole, memory, image);
    Update part = whole;
    part.shard_begin = kCut;
    for (Tensor* t : {&part.gradient_P, &part.weight_P, &part.master_P}) {
      if (t->present()) *t = t->Slice(0, kCut, kSize - kCut);
    }
    const absl::Span<const UpdateState> states = StatesOf(rule);
    for (size_t i = 0; i < states.size(); ++i) {
      const int64_t begin = kCut / states[i].block;
      part.states[i] = part.states[i].Slice(0, begin, part.states[i].dim(0) - begin);
    }
    std::vector<std::byte> part_image = RunOnBackend(backend.name, memory, part);
    const std::vector<float> got = MastersOf(part, memory, part_image);
    for (int64_t i = kCut; i < kSize; ++i) ASSERT_EQ(got[i - kCut], want[i]) << i;
  }
}

TEST(Update, PartsOfAShardAgreeWithTheWhole) {
  for (const UpdateRule& rule : AllRules()) {
    for (const Masters form : {Masters::kFloat, Masters::kNone}) ExpectPartsAgree(rule, form);
  }
}

// Returns an update of `n` bf16 weights of 1 that adds 2^-k to each in exact arithmetic. A bf16 step is 2^-7 there.
Update AddsToOnes(TestMemory& memory, int64_t n, int k) {
  Update op = MakeUpdate(memory, SgdRule{.momentum = 0}, Masters::kNone, std::vector<double>(n, 1.0));
  op.update_5 = memory.Values(DType::kFloat32, {kUpdateSize}, {1, 1, 1, 1, 0});
  op.gradient_P = memory.Values(DType::kFloat32, {n}, std::vector<double>(n, -std::ldexp(1, -k)));
  return op;
}

// Each weight of 1 + x rounds up by a step s = 2^-7 with probability x / s. The mean of n has a standard deviation of
// at most s / 2 / sqrt(n), and six of them are never exceeded in practice. Rounding to nearest would change no weight.
// All backends compute 1 + x exactly, so they round to the same bits.
TEST(Update, StochasticRoundingIsRightOnAverage) {
  constexpr int64_t kSize = 20000;
  for (const int k : {8, 10, 13}) {
    TestMemory memory;
    const Update op = AddsToOnes(memory, kSize, k);
    std::vector<std::byte> reference = RunOnReference(memory, op);
    const std::vector<float> want = MastersOf(op, memory, reference);
    double sum = 0;
    for (const float p : want) sum += p - 1;
    EXPECT_NEAR(sum / kSize, std::ldexp(1, -k), 6 * 0x1p-8 / std::sqrt(kSize)) << k;
    for (const TestBackend& backend : TestBackends()) {
      std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
      EXPECT_EQ(MastersOf(op, memory, image), want) << backend.name;
    }
  }
}

TEST(Update, StochasticRoundingDependsOnSeedNumberAndGroup) {
  constexpr int64_t kSize = 300;
  for (const TestBackend& backend : TestBackends()) {
    TestMemory memory;
    const Update op = AddsToOnes(memory, kSize, 8);
    const auto run = [&](const Update& changed) {
      std::vector<std::byte> image = RunOnBackend(backend.name, memory, changed);
      return MastersOf(changed, memory, image);
    };
    Update seed = op, number = op, group = op;
    ++seed.seed;
    ++group.group;
    number.number_1 = memory.Values(DType::kInt64, {1}, {1000004});
    const std::vector<float> plain = run(op);
    for (const Update& other : {seed, number, group}) EXPECT_NE(run(other), plain) << backend.name;
    EXPECT_EQ(run(op), plain) << backend.name;
  }
}

// v moves by 2^-10 of its distance to g^2 in a step, which is less than half a bf16 step, so rounding to nearest would
// freeze it near g^2 / 4.
TEST(Update, Bf16MomentsDoNotFreeze) {
  constexpr int64_t kSize = 64;
  constexpr int kSteps = 2000;
  std::vector<double> m(kSize), v(kSize);
  for (int step = 1; step <= kSteps; ++step) {
    TestMemory memory;
    Update op = MakeUpdate(memory, AdamWRule{.beta2 = 1 - 0x1p-10f, .state_dtype = DType::kBFloat16}, Masters::kNone,
                           std::vector<double>(kSize, 1.0));
    op.update_5 = memory.Values(DType::kFloat32, {kUpdateSize}, {0, 1, 1, 1, 0});
    op.gradient_P = memory.Values(DType::kFloat32, {kSize}, std::vector<double>(kSize, 1.0));
    op.states[0] = memory.Values(DType::kBFloat16, {kSize}, m);
    op.states[1] = memory.Values(DType::kBFloat16, {kSize}, v);
    op.number_1 = memory.Values(DType::kInt64, {1}, {static_cast<double>(step)});
    std::vector<std::byte> image = RunOnReference(memory, op);
    for (int64_t i = 0; i < kSize; ++i) {
      m[i] = ElementOf(memory.Bind(op.states[0], image.data()), i);
      v[i] = ElementOf(memory.Bind(op.states[1], image.data()), i);
    }
  }
  double mean = 0;
  for (const double x : v) mean += x / kSize;
  // A step of v, at most 2^-8, adds a variance of a quarter of its square, and 2^9 steps count: 0.044 for one v.
  EXPECT_NEAR(mean, 1 - std::pow(1 - 0x1p-10, kSteps), 6 * 0.044 / std::sqrt(kSize));
}

}  // namespace
}  // namespace shale::testing
