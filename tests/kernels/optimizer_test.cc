// AdamW, and the scalars that a step decides with.
#include <bit>
#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

enum class Masters { kWeight, kFloatWide, kFloat, kSplit };

std::string Name(Masters masters) {
  switch (masters) {
    case Masters::kWeight: return "weight";
    case Masters::kFloatWide: return "wide_master";
    case Masters::kFloat: return "master";
    case Masters::kSplit: return "split";
  }
  return "";
}

std::shared_ptr<const std::vector<ElementRange>> Ranges(std::vector<ElementRange> ranges) {
  return std::make_shared<const std::vector<ElementRange>>(std::move(ranges));
}

constexpr double kRate = 1e-2;

// An AdamW whose masters are the fp32 values of `masters` whatever form they are kept in.
AdamW MakeAdamW(TestMemory& memory, Masters form, const std::vector<double>& masters) {
  const int64_t n = static_cast<int64_t>(masters.size());
  AdamW op;
  op.update_5 = memory.Values(DType::kFloat32, {kUpdateSize}, {kRate, 0.19, 0.0975, 0.75, 0});
  op.gradient_P = memory.Random(DType::kFloat32, {n});
  op.m_P = memory.Random(DType::kFloat32, {n}, -0.1, 0.1);
  op.v_P = memory.Random(DType::kFloat32, {n}, 0.01, 0.1);
  if (form == Masters::kWeight || form == Masters::kFloatWide) {
    op.weight_P = memory.Values(DType::kFloat32, {n}, masters);
  } else {
    std::vector<double> weights, lows;
    for (const double p : masters) {
      const BFloat16 weight = RoundMaster(static_cast<float>(p));
      weights.push_back(ToFloat(weight));
      lows.push_back(MasterLowBits(static_cast<float>(p), weight));
    }
    op.weight_P = memory.Values(DType::kBFloat16, {n}, weights);
    if (form == Masters::kSplit) op.low_P = memory.Values(DType::kInt16, {n}, lows);
  }
  if (form == Masters::kFloat || form == Masters::kFloatWide) {
    op.master_P = memory.Values(DType::kFloat32, {n}, masters);
  }
  return op;
}

std::vector<double> RandomMasters(int64_t n) {
  TestMemory memory(7);
  std::vector<std::byte> image;
  const Tensor t = memory.Random(DType::kFloat32, {n});
  image = memory.image();
  std::vector<double> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(ElementOf(memory.Bind(t, image.data()), i));
  return values;
}

// The masters of `op` in an image, in whatever form they are kept.
std::vector<float> MastersOf(const AdamW& symbolic, const TestMemory& memory, std::vector<std::byte>& image) {
  const AdamW op = std::get<AdamW>(memory.Bind(symbolic, image.data()));
  std::vector<float> masters;
  for (int64_t i = 0; i < op.weight_P.dim(0); ++i) {
    masters.push_back(op.master_P.present() ? op.master_P.as<float>()[i]
                      : op.low_P.present()  ? JoinMaster(op.weight_P.as<BFloat16>()[i], op.low_P.as<int16_t>()[i])
                                            : op.weight_P.as<float>()[i]);
  }
  return masters;
}

OpCase AdamWCase(Masters form, int64_t n, std::vector<ElementRange> decayed, int64_t shard_begin) {
  OpCase c{.name = "AdamW_" + Name(form) + "_" + std::to_string(n) + "_at_" + std::to_string(shard_begin) + "_to" +
                   std::to_string(decayed.empty() ? 0 : decayed.back().end)};
  AdamW op = MakeAdamW(c.memory, form, RandomMasters(n));
  if (!decayed.empty()) op.decayed = Ranges(std::move(decayed));
  op.shard_begin = shard_begin;
  op.weight_decay = 0.5f;
  c.op = op;
  // m and v are three roundings of values below 1. The step is rate / 0.19 m / (sqrt(v) / 0.31) with |m| < 0.2 and
  // sqrt(v) > 0.09, below 4 rate, with some ten roundings; p itself, below 1, is rounded twice.
  const Tolerance moment = {.absolute = 4 * kUnit32};
  const Tolerance master = {.absolute = 4 * kRate * 16 * kUnit32 + 2 * kUnit32};
  c.tolerances = {{"m", moment}, {"v", moment}, {"weight", master}, {"master", master}, {"low", {.ignored = true}}};
  return c;
}

OpCase PrepareUpdateCase(const std::string& name, double max_norm, double valid, std::vector<double> totals,
                         double count) {
  OpCase c{.name = "PrepareUpdate_" + name};
  c.op = PrepareUpdate{.hyper_2 = c.memory.Values(DType::kFloat32, {kHyperSize}, {3e-4, max_norm}),
                       .valid_tokens_1 = c.memory.Values(DType::kInt64, {1}, {valid}),
                       .totals_3 = c.memory.Values(DType::kFloat64, {kTotalSize}, totals),
                       .update_count_1 = c.memory.Values(DType::kInt64, {1}, {count}),
                       .update_5 = c.memory.Output(DType::kFloat32, {kUpdateSize})};
  // A backend may take powers and roots in its own way.
  c.tolerances["update"] = {.relative = 4 * kUnit32};
  return c;
}

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<OpCase> OptimizerCases() {
  std::vector<OpCase> cases;
  for (const Masters form : {Masters::kWeight, Masters::kFloatWide, Masters::kFloat, Masters::kSplit}) {
    cases.push_back(AdamWCase(form, 0, {}, 0));
    cases.push_back(AdamWCase(form, 1, {{0, 1}}, 0));
    cases.push_back(AdamWCase(form, 37, {}, 0));
    // Ranges that begin before the slice, end within it, are empty, lie within, and begin behind it.
    cases.push_back(AdamWCase(form, 100, {{0, 5}, {30, 117}, {118, 118}, {130, 131}, {140, 200}}, 110));
    cases.push_back(AdamWCase(form, 40, {{0, 1000}}, 77));
    cases.push_back(AdamWCase(form, 40, {{0, 30}}, 77));
    cases.push_back(AdamWCase(form, 40011, {{100, 20000}, {39000, 40013}}, 3));
  }
  for (const double valid : {0.0, 1.0, 3.0, 1e12}) {
    OpCase c{.name = "LossScale_" + std::to_string(static_cast<int64_t>(valid))};
    c.op = LossScale{.valid_tokens_1 = c.memory.Values(DType::kInt64, {1}, {valid}),
                     .scale_1 = c.memory.Output(DType::kFloat32, {1})};
    cases.push_back(std::move(c));
  }
  const std::vector<std::vector<double>> totals = {
      {2.5, 3, 7}, {kNaN, 3, 0}, {2.5, kInfinity, 0}, {-kInfinity, kNaN, 1}};
  for (size_t i = 0; i < totals.size(); ++i) {
    OpCase c{.name = "FlagNonFinite_" + std::to_string(i)};
    c.op = FlagNonFinite{.totals_3 = c.memory.Values(DType::kFloat64, {kTotalSize}, totals[i])};
    cases.push_back(std::move(c));
  }
  cases.push_back(PrepareUpdateCase("unclipped", 0, 5, {1, 1e6, 0}, 0));
  cases.push_back(PrepareUpdateCase("clipped", 1, 5, {1, 16, 0}, 1000));
  cases.push_back(PrepareUpdateCase("within_norm", 10, 5, {1, 16, 0}, 3));
  cases.push_back(PrepareUpdateCase("no_tokens", 1, 0, {0, 0, 0}, 3));
  cases.push_back(PrepareUpdateCase("not_finite", 1, 5, {1, 16, 2}, 3));
  cases.push_back(PrepareUpdateCase("sum_overflows", 1, 5, {1, kInfinity, 0}, 3));
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Optimizer, OpConformance, ::testing::ValuesIn(OptimizerCases()), CaseName);

TEST(PrepareUpdate, CountsClipsAndSkips) {
  struct Want {
    const char* name;
    double max_norm, valid;
    std::vector<double> totals;
    double count, correction1, factor, skip;
  };
  for (const Want& want : {Want{"clips", 1, 5, {1, 16, 0}, 2, 1 - 0.9 * 0.9, 1.0 / 4, 0},
                           Want{"does not clip below the norm", 8, 5, {1, 16, 0}, 2, 1 - 0.9 * 0.9, 1, 0},
                           Want{"does not clip at 0", 0, 5, {1, 16, 0}, 2, 1 - 0.9 * 0.9, 1, 0},
                           Want{"skips without tokens", 1, 0, {0, 0, 0}, 1, 1, 0, 1},
                           Want{"skips on a rank's flag", 1, 5, {1, 16, 1}, 1, 1, 0, 1},
                           Want{"skips on NaN", 1, 5, {kNaN, 16, 0}, 1, 1, 0, 1}}) {
    SCOPED_TRACE(want.name);
    const OpCase c = PrepareUpdateCase("x", want.max_norm, want.valid, want.totals, /*count=*/1);
    for (const TestBackend& backend : TestBackends()) {
      SCOPED_TRACE(backend.name);
      std::vector<std::byte> image = RunOnBackend(backend.name, c.memory, c.op);
      const auto op = std::get<PrepareUpdate>(c.memory.Bind(c.op, image.data()));
      EXPECT_EQ(*op.update_count_1.as<int64_t>(), static_cast<int64_t>(want.count));
      const float* update = op.update_5.as<float>();
      EXPECT_EQ(update[kUpdateLearningRate], 3e-4f);
      EXPECT_NEAR(update[kUpdateCorrection1], want.correction1, 1e-6);
      EXPECT_NEAR(update[kUpdateGradientFactor], want.factor, 1e-6);
      EXPECT_EQ(update[kUpdateSkip], want.skip);
    }
  }
}

TEST(AdamW, SkippedUpdateChangesNothing) {
  for (const Masters form : {Masters::kWeight, Masters::kFloatWide, Masters::kFloat, Masters::kSplit}) {
    TestMemory memory;
    AdamW op = MakeAdamW(memory, form, RandomMasters(50));
    op.update_5 = memory.Values(DType::kFloat32, {kUpdateSize}, {kRate, 1, 1, 0, 1});
    for (const TestBackend& backend : TestBackends()) {
      EXPECT_TRUE(RunOnBackend(backend.name, memory, op) == memory.image()) << backend.name << " " << Name(form);
    }
  }
}

// The split form holds the fp32 master exactly, and rounds weights alike: both train to the same bits.
TEST(AdamW, SplitAndFloatMastersHoldTheSameBits) {
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    std::vector<double> split = RandomMasters(3000);
    std::vector<double> wide = split;
    for (int step = 0; step < 5; ++step) {
      TestMemory split_memory(step), wide_memory(step);
      AdamW split_op = MakeAdamW(split_memory, Masters::kSplit, split);
      AdamW wide_op = MakeAdamW(wide_memory, Masters::kFloat, wide);
      split_op.decayed = wide_op.decayed = Ranges({{100, 2000}});
      std::vector<std::byte> split_image = RunOnBackend(backend.name, split_memory, split_op);
      std::vector<std::byte> wide_image = RunOnBackend(backend.name, wide_memory, wide_op);
      const std::vector<float> split_masters = MastersOf(split_op, split_memory, split_image);
      const std::vector<float> wide_masters = MastersOf(wide_op, wide_memory, wide_image);
      ASSERT_EQ(split_masters, wide_masters) << "step " << step;
      const Tensor split_weight = split_memory.Bind(split_op.weight_P, split_image.data());
      const Tensor wide_weight = wide_memory.Bind(wide_op.weight_P, wide_image.data());
      for (int64_t i = 0; i < 3000; ++i) {
        const BFloat16 weight = split_weight.as<BFloat16>()[i];
        ASSERT_EQ(weight.bits, wide_weight.as<BFloat16>()[i].bits);
        ASSERT_EQ(weight.bits, RoundMaster(wide_masters[i]).bits);
      }
      split.assign(split_masters.begin(), split_masters.end());
      wide.assign(wide_masters.begin(), wide_masters.end());
    }
  }
}

// With no gradient and no moments p stays, so that every finite fp32 shows how it is split and rounded.
TEST(AdamW, EveryMasterSurvivesTheSplit) {
  std::vector<double> masters;
  for (uint32_t upper = 0; upper < 0x10000; upper += 3) {
    for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float p = std::bit_cast<float>(upper << 16 | lower);
      if (std::isfinite(p)) masters.push_back(p);
    }
  }
  const int64_t n = static_cast<int64_t>(masters.size());
  TestMemory memory;
  AdamW op = MakeAdamW(memory, Masters::kSplit, masters);
  const std::vector<double> zeros(n);
  op.gradient_P = memory.Values(DType::kFloat32, {n}, zeros);
  op.m_P = memory.Values(DType::kFloat32, {n}, zeros);
  op.v_P = memory.Values(DType::kFloat32, {n}, zeros);
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

// A NaN must not turn into a finite weight: the trainer would not see it.
TEST(AdamW, NaNsStayNaNs) {
  for (const Masters form : {Masters::kWeight, Masters::kFloatWide, Masters::kFloat, Masters::kSplit}) {
    TestMemory memory;
    std::vector<double> masters = RandomMasters(20);
    masters[3] = kNaN;
    const AdamW op = MakeAdamW(memory, form, masters);
    for (const TestBackend& backend : TestBackends()) {
      SCOPED_TRACE(backend.name + " " + Name(form));
      std::vector<std::byte> image = RunOnBackend(backend.name, memory, op);
      EXPECT_TRUE(std::isnan(MastersOf(op, memory, image)[3]));
      EXPECT_TRUE(std::isnan(ElementOf(memory.Bind(op.weight_P, image.data()), 3)));
      EXPECT_FALSE(std::isnan(ElementOf(memory.Bind(op.weight_P, image.data()), 4)));
    }
  }
}

// Two steps by hand, in fp64, of torch.optim.AdamW's algorithm for lr 0.1, betas (0.9, 0.99), decay 0.1, eps 1e-8.
TEST(AdamW, FollowsTheTextbook) {
  TestMemory memory;
  constexpr DType kWide = DType::kFloat64;
  AdamW op;
  op.update_5 = memory.Values(kWide, {kUpdateSize}, {0.1, 1 - 0.81, 1 - 0.9801, 0.5, 0});
  op.gradient_P = memory.Values(kWide, {2}, {0.4, -3.0});
  op.weight_P = memory.Values(kWide, {2}, {1.0, 2.0});
  op.m_P = memory.Values(kWide, {2}, {0.02, 0.1});
  op.v_P = memory.Values(kWide, {2}, {0.0004, 0.01});
  op.decayed = Ranges({{8, 9}});
  op.shard_begin = 7;
  op.beta2 = 0.99f;
  std::vector<std::byte> image = RunOnReference(memory, op);
  const auto got = std::get<AdamW>(memory.Bind(op, image.data()));
  const double gradients[] = {0.2, -1.5}, weights[] = {1.0, 2.0}, ms[] = {0.02, 0.1}, vs[] = {0.0004, 0.01};
  for (int i = 0; i < 2; ++i) {
    const double g = gradients[i];
    const double m = 0.9 * ms[i] + 0.1 * g, v = 0.99 * vs[i] + 0.01 * g * g;
    const double decay = i == 1 ? 0.1 * 0.1 * weights[i] : 0;  // Element 1 of the slice is element 8 of the group.
    const double p = weights[i] - decay - 0.1 * (m / 0.19) / (std::sqrt(v / 0.0199) + 1e-8);
    EXPECT_NEAR(ElementOf(got.m_P, i), m, 1e-7);
    EXPECT_NEAR(ElementOf(got.v_P, i), v, 1e-7);
    EXPECT_NEAR(ElementOf(got.weight_P, i), p, 1e-6);  // The betas are fp32.
  }
}

}  // namespace
}  // namespace shale::testing
