// Tests the ops on scalars with which a step decides: MeanFactor, FlagNonFinite, PrepareUpdate and RecordNorm.
#include <limits>
#include <string>
#include <tuple>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/ops/scalars.h"
#include "kernels/step_scalars.h"
#include "tests/kernels/op_conformance.h"
#include "tests/kernels/test_backends.h"

namespace shale::testing {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

OpCase PrepareUpdateCase(const std::string& name, double max_norm, double valid, std::vector<double> totals,
                         double count) {
  OpCase c{.name = "PrepareUpdate_" + name};
  c.op = PrepareUpdate{.hyper_2 = c.memory.Values(DType::kFloat32, {kHyperSize}, {3e-4, max_norm}),
                       .valid_tokens_1 = c.memory.Values(DType::kInt64, {1}, {valid}),
                       .totals_3 = c.memory.Values(DType::kFloat64, {kTotalSize}, totals),
                       .update_count_1 = c.memory.Values(DType::kInt64, {1}, {count}),
                       .update_5 = c.memory.Output(DType::kFloat32, {kUpdateSize})};
  // A backend may compute powers and roots in its own way.
  c.tolerances["update"] = {.relative = 4 * kUnit32};
  return c;
}

// Adds the state of loss scaling.
OpCase ScaledUpdateCase(const std::string& name, std::vector<double> totals, std::vector<double> loss_scale) {
  OpCase c = PrepareUpdateCase("scaled_" + name, /*max_norm=*/1, /*valid=*/5, std::move(totals), /*count=*/3);
  auto& op = *c.op.As<PrepareUpdate>();
  op.loss_scale_3 = c.memory.Values(DType::kFloat64, {kLossScaleSize}, loss_scale);
  op.growth_interval = 4;
  return c;
}

std::vector<OpCase> ScaledCases() {
  std::vector<OpCase> cases;
  OpCase scale{.name = "MeanFactor_scaled"};
  scale.op = MeanFactor{.valid_tokens_1 = scale.memory.Values(DType::kInt64, {1}, {3}),
                        .factor_1 = scale.memory.Output(DType::kFloat32, {1}),
                        .loss_scale_3 = scale.memory.Values(DType::kFloat64, {kLossScaleSize}, {65536, 1, 0})};
  cases.push_back(std::move(scale));
  const std::vector<std::vector<double>> totals = {{2.5, 48, 7}, {kNaN, 48, 0}, {2.5, kInfinity, 0}};
  for (size_t i = 0; i < totals.size(); ++i) {
    OpCase c{.name = "FlagNonFinite_scaled_" + std::to_string(i)};
    c.op = FlagNonFinite{.totals_3 = c.memory.Values(DType::kFloat64, {kTotalSize}, totals[i]),
                         .loss_scale_3 = c.memory.Values(DType::kFloat64, {kLossScaleSize}, {4, 0, 0})};
    cases.push_back(std::move(c));
  }
  OpCase combine{.name = "CombineTotals_keeps_loss"};
  combine.op = CombineTotals{.groups_G3 = combine.memory.Values(DType::kFloat64, {2, kTotalSize}, {2, 3, 0, 2, 0, 1}),
                             .totals_3 = combine.memory.Output(DType::kFloat64, {kTotalSize}),
                             .keeps_loss = true};
  cases.push_back(std::move(combine));
  cases.push_back(ScaledUpdateCase("counts", {1, 16, 0}, {1024, 1, 2}));
  cases.push_back(ScaledUpdateCase("grows", {1, 16, 0}, {1024, 3, 0}));
  cases.push_back(ScaledUpdateCase("cannot_grow", {1, 16, 0}, {0x1p127, 3, 0}));
  cases.push_back(ScaledUpdateCase("overflows", {1, 0, 1}, {1024, 3, 1}));
  cases.push_back(ScaledUpdateCase("sum_overflows", {1, kInfinity, 0}, {1024, 3, 1}));
  return cases;
}

// Means over tokens and over weights, and the updates that are prepared with the totals of the latter.
std::vector<OpCase> MeanCases() {
  std::vector<OpCase> cases;
  for (const double valid : {0.0, 1.0, 3.0, 1e12}) {
    OpCase c{.name = "MeanFactor_" + std::to_string(static_cast<int64_t>(valid))};
    c.op = MeanFactor{.valid_tokens_1 = c.memory.Values(DType::kInt64, {1}, {valid}),
                      .factor_1 = c.memory.Output(DType::kFloat32, {1})};
    cases.push_back(std::move(c));
  }
  for (const double total : {0.0, 0.375, 1e12}) {
    OpCase c{.name = "MeanFactor_weights_" + std::to_string(static_cast<int64_t>(8 * total))};
    c.op = MeanFactor{.valid_tokens_1 = c.memory.Values(DType::kInt64, {1}, {5}),
                      .factor_1 = c.memory.Output(DType::kFloat32, {1}),
                      .weight_total_1 = c.memory.Values(DType::kFloat64, {1}, {total})};
    cases.push_back(std::move(c));
    OpCase prepare =
        PrepareUpdateCase("weights_" + std::to_string(static_cast<int64_t>(8 * total)), 1, 5, {1, 16, 0}, 3);
    prepare.op.As<PrepareUpdate>()->weight_total_1 = prepare.memory.Values(DType::kFloat64, {1}, {total});
    cases.push_back(std::move(prepare));
  }
  return cases;
}

std::vector<OpCase> TotalsCases() {
  std::vector<OpCase> cases;
  const std::vector<std::vector<double>> totals = {
      {2.5, 3, 7}, {kNaN, 3, 0}, {2.5, kInfinity, 0}, {-kInfinity, kNaN, 1}};
  for (size_t i = 0; i < totals.size(); ++i) {
    OpCase c{.name = "FlagNonFinite_" + std::to_string(i)};
    c.op = FlagNonFinite{.totals_3 = c.memory.Values(DType::kFloat64, {kTotalSize}, totals[i])};
    cases.push_back(std::move(c));
  }
  const std::vector<std::vector<double>> rows = {
      {2.5, 3, 0}, {2.5, 3, 0, 2.5, 0.25, 0, 2.5, 1e-20, 0}, {2.5, 3, 0, 0, 0, 2, 0, 0, 1}};
  for (size_t i = 0; i < rows.size(); ++i) {
    OpCase c{.name = "CombineTotals_" + std::to_string(i)};
    c.op = CombineTotals{
        .groups_G3 = c.memory.Values(DType::kFloat64, {std::ssize(rows[i]) / kTotalSize, kTotalSize}, rows[i]),
        .totals_3 = c.memory.Output(DType::kFloat64, {kTotalSize})};
    cases.push_back(std::move(c));
  }
  return cases;
}

std::vector<OpCase> PrepareUpdateCases() {
  std::vector<OpCase> cases;
  cases.push_back(PrepareUpdateCase("unclipped", 0, 5, {1, 1e6, 0}, 0));
  cases.push_back(PrepareUpdateCase("clipped", 1, 5, {1, 16, 0}, 1000));
  cases.push_back(PrepareUpdateCase("another_learning_rate", 1, 5, {1, 16, 0}, 3));
  cases.back().op.As<PrepareUpdate>()->learning_rate_factor = 0.3f;
  for (const float own : {0.0f, 0.25f, 100.0f}) {
    cases.push_back(
        PrepareUpdateCase("own_max_norm_" + std::to_string(static_cast<int>(4 * own)), 1, 5, {1, 16, 0}, 3));
    cases.back().op.As<PrepareUpdate>()->max_norm = own;
  }
  cases.push_back(PrepareUpdateCase("within_norm", 10, 5, {1, 16, 0}, 3));
  cases.push_back(PrepareUpdateCase("no_tokens", 1, 0, {0, 0, 0}, 3));
  cases.push_back(PrepareUpdateCase("not_finite", 1, 5, {1, 16, 2}, 3));
  cases.push_back(PrepareUpdateCase("sum_overflows", 1, 5, {1, kInfinity, 0}, 3));
  for (const double previous : {0.0, 0.5, 16.0}) {
    OpCase c =
        PrepareUpdateCase("previous_norm_" + std::to_string(static_cast<int64_t>(2 * previous)), 1, 5, {1, 16, 0}, 3);
    c.op.As<PrepareUpdate>()->previous_norm_1 = c.memory.Values(DType::kFloat64, {1}, {previous});
    cases.push_back(std::move(c));
  }
  return cases;
}

std::vector<OpCase> RecordNormCases() {
  std::vector<OpCase> cases;
  for (const auto& [name, valid, squared, flag] : {std::tuple("finite", 5, 16.0, 0),
                                                   {"infinite", 5, kInfinity, 0},
                                                   {"flagged", 5, 0.0, 1},
                                                   {"no_tokens", 0, 16.0, 0}}) {
    OpCase c{.name = std::string("RecordNorm_") + name};
    c.op = RecordNorm{.valid_tokens_1 = c.memory.Values(DType::kInt64, {1}, {1.0 * valid}),
                      .totals_3 = c.memory.Values(DType::kFloat64, {kTotalSize}, {1, squared, 1.0 * flag}),
                      .norm_1 = c.memory.Values(DType::kFloat64, {1}, {2.5})};
    cases.push_back(std::move(c));
  }
  OpCase weightless{.name = "RecordNorm_no_weight"};
  weightless.op = RecordNorm{.valid_tokens_1 = weightless.memory.Values(DType::kInt64, {1}, {5}),
                             .totals_3 = weightless.memory.Values(DType::kFloat64, {kTotalSize}, {1, 16, 0}),
                             .norm_1 = weightless.memory.Values(DType::kFloat64, {1}, {2.5}),
                             .weight_total_1 = weightless.memory.Values(DType::kFloat64, {1}, {0})};
  cases.push_back(std::move(weightless));
  return cases;
}

std::vector<OpCase> ScalarCases() {
  std::vector<OpCase> cases;
  for (const auto& of : {MeanCases, TotalsCases, PrepareUpdateCases, RecordNormCases}) {
    for (OpCase& c : of()) cases.push_back(std::move(c));
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(ScaledOps, OpConformance, ::testing::ValuesIn(ScaledCases()), CaseName);
INSTANTIATE_TEST_SUITE_P(ScalarOps, OpConformance, ::testing::ValuesIn(ScalarCases()), CaseName);

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
      const auto op = *c.memory.Bind(c.op, image.data()).As<PrepareUpdate>();
      EXPECT_EQ(*op.update_count_1.as<int64_t>(), static_cast<int64_t>(want.count));
      const float* update = op.update_5.as<float>();
      EXPECT_EQ(update[kUpdateLearningRate], 3e-4f);
      EXPECT_NEAR(update[kUpdateCorrection1], want.correction1, 1e-6);
      EXPECT_NEAR(update[kUpdateGradientFactor], want.factor, 1e-6);
      EXPECT_EQ(update[kUpdateSkip], want.skip);
    }
  }
}

// The rules of torch.amp.GradScaler, and what they make of a gradient whose norm is 4 without the scale.
TEST(PrepareUpdate, AdjustsTheLossScale) {
  struct Want {
    std::vector<double> totals, before, after;
    double valid, factor;
  };
  for (const Want& want :
       {Want{{1, 16, 0}, {1024, 1, 2}, {1024, 2, 0}, 5, 0x1p-12},
        Want{{1, 16, 0}, {1024, 3, 0}, {2048, 0, 0}, 5, 0x1p-12}, Want{{1, 0, 1}, {1024, 3, 1}, {512, 0, 2}, 5, 0},
        Want{{0, 0, 0}, {1024, 3, 1}, {1024, 3, 1}, 0, 0}}) {
    OpCase c = ScaledUpdateCase("x", want.totals, want.before);
    c.op.As<PrepareUpdate>()->valid_tokens_1 = c.memory.Values(DType::kInt64, {1}, {want.valid});
    for (const TestBackend& backend : TestBackends()) {
      SCOPED_TRACE(backend.name);
      std::vector<std::byte> image = RunOnBackend(backend.name, c.memory, c.op);
      const auto op = *c.memory.Bind(c.op, image.data()).As<PrepareUpdate>();
      const double* scale = op.loss_scale_3.as<double>();
      EXPECT_EQ(std::vector<double>(scale, scale + kLossScaleSize), want.after);
      EXPECT_NEAR(op.update_5.as<float>()[kUpdateGradientFactor], want.factor, 1e-9);
    }
  }
}

TEST(PrepareUpdate, SkipsAStepWhoseWeightsAreAllZero) {
  for (const double total : {0.0, 1e-30, kNaN}) {
    OpCase c = PrepareUpdateCase("x", /*max_norm=*/1, /*valid=*/5, {0, 16, 0}, /*count=*/1);
    c.op.As<PrepareUpdate>()->weight_total_1 = c.memory.Values(DType::kFloat64, {1}, {total});
    for (const TestBackend& backend : TestBackends()) {
      std::vector<std::byte> image = RunOnBackend(backend.name, c.memory, c.op);
      const auto op = *c.memory.Bind(c.op, image.data()).As<PrepareUpdate>();
      EXPECT_EQ(op.update_5.as<float>()[kUpdateSkip], total > 0 ? 0 : 1) << backend.name << " " << total;
    }
  }
}

TEST(PrepareUpdate, UsesTheNumberOfTheUpdateWithoutCountingItIfToldSo) {
  OpCase c = PrepareUpdateCase("x", /*max_norm=*/1, /*valid=*/5, {1, 16, 0}, /*count=*/1);
  c.op.As<PrepareUpdate>()->counts = false;
  c.op.As<PrepareUpdate>()->number_1 = c.memory.Output(DType::kInt64, {1});
  for (const TestBackend& backend : TestBackends()) {
    SCOPED_TRACE(backend.name);
    std::vector<std::byte> image = RunOnBackend(backend.name, c.memory, c.op);
    const auto op = *c.memory.Bind(c.op, image.data()).As<PrepareUpdate>();
    EXPECT_EQ(*op.update_count_1.as<int64_t>(), 1);
    EXPECT_EQ(*op.number_1.as<int64_t>(), 2);
    EXPECT_NEAR(op.update_5.as<float>()[kUpdateCorrection1], 1 - 0.9 * 0.9, 1e-6);
  }
}

TEST(PrepareUpdate, ClipsByThePreviousNormIfThereIsOne) {
  for (const auto& [previous, factor] : {std::pair(0.0, 1.0), {0.5, 1.0}, {8.0, 1.0 / 8}}) {
    OpCase c = PrepareUpdateCase("x", /*max_norm=*/1, /*valid=*/5, {1, 16, 0}, /*count=*/1);
    c.op.As<PrepareUpdate>()->previous_norm_1 = c.memory.Values(DType::kFloat64, {1}, {previous});
    for (const TestBackend& backend : TestBackends()) {
      std::vector<std::byte> image = RunOnBackend(backend.name, c.memory, c.op);
      const auto op = *c.memory.Bind(c.op, image.data()).As<PrepareUpdate>();
      EXPECT_NEAR(op.update_5.as<const float>()[kUpdateGradientFactor], factor, 1e-6)
          << backend.name << " " << previous;
    }
  }
}

TEST(RecordNorm, KeepsTheNormOfTheLastStepThatUpdated) {
  for (const auto& [valid, squared, flag, norm] :
       {std::tuple(5, 16.0, 0, 4.0), {5, kInfinity, 0, 2.5}, {5, 0.0, 1, 2.5}, {0, 16.0, 0, 2.5}}) {
    OpCase c{.name = "RecordNorm"};
    c.op = RecordNorm{.valid_tokens_1 = c.memory.Values(DType::kInt64, {1}, {1.0 * valid}),
                      .totals_3 = c.memory.Values(DType::kFloat64, {kTotalSize}, {1, squared, 1.0 * flag}),
                      .norm_1 = c.memory.Values(DType::kFloat64, {1}, {2.5})};
    for (const TestBackend& backend : TestBackends()) {
      std::vector<std::byte> image = RunOnBackend(backend.name, c.memory, c.op);
      EXPECT_EQ(*c.memory.Bind(c.op, image.data()).As<RecordNorm>()->norm_1.as<const double>(), norm) << backend.name;
    }
  }
}

TEST(CombineTotals, AddsNormsInOrderAndDropsSumsIfAGroupIsFlagged) {
  for (const auto& [rows, want] : {std::pair<std::vector<double>, std::vector<double>>{{2, 3, 0, 2, 5, 0}, {2, 8, 0}},
                                   {{2, 3, 0, 0, 0, 2}, {0, 0, 2}}}) {
    OpCase c{.name = "x"};
    c.op = CombineTotals{.groups_G3 = c.memory.Values(DType::kFloat64, {2, kTotalSize}, rows),
                         .totals_3 = c.memory.Output(DType::kFloat64, {kTotalSize})};
    for (const TestBackend& backend : TestBackends()) {
      SCOPED_TRACE(backend.name);
      std::vector<std::byte> image = RunOnBackend(backend.name, c.memory, c.op);
      const auto op = *c.memory.Bind(c.op, image.data()).As<CombineTotals>();
      const double* totals = op.totals_3.as<double>();
      EXPECT_EQ(std::vector<double>(totals, totals + kTotalSize), want);
    }
  }
}

}  // namespace
}  // namespace shale::testing
