#include "engine/plan/config/learning_rate.h"

#include <cmath>
#include <limits>
#include <numbers>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Shape = LearningRateShape;

LearningRateSchedule Make(const LearningRateOptions& options) { return LearningRateSchedule::Create(options).value(); }

TEST(LearningRateTest, ConstantStaysAtItsPeak) {
  const auto schedule = Make({.shape = Shape::kConstant, .peak = 0.5, .steps = 4, .final_fraction = 0});
  for (const int64_t step : {0, 1, 3, 4, 1000}) EXPECT_EQ(schedule.At(step), 0.5);
}

TEST(LearningRateTest, WarmUpRisesFromOneShareToThePeak) {
  for (const Shape shape : {Shape::kConstant, Shape::kLinear, Shape::kCosine, Shape::kWarmupStableDecay}) {
    const auto schedule = Make({.shape = shape, .peak = 0.3, .steps = 10, .warmup = 3});
    EXPECT_EQ(schedule.warmup_steps(), 3);
    EXPECT_DOUBLE_EQ(schedule.At(0), 0.3 / 3);
    EXPECT_DOUBLE_EQ(schedule.At(1), 0.3 * 2 / 3);
    EXPECT_EQ(schedule.At(2), 0.3);
  }
}

TEST(LearningRateTest, AWarmUpOfOneStepIsNone) {
  const auto none = Make({.shape = Shape::kCosine, .steps = 10});
  const auto one = Make({.shape = Shape::kCosine, .steps = 10, .warmup = 1});
  for (int64_t step = 0; step < 12; ++step) EXPECT_EQ(none.At(step), one.At(step));
}

TEST(LearningRateTest, LinearFallsInEqualSteps) {
  const auto schedule = Make({.shape = Shape::kLinear, .peak = 1, .steps = 5, .final_fraction = 0});
  EXPECT_EQ(schedule.At(0), 1);
  EXPECT_EQ(schedule.At(1), 0.75);
  EXPECT_EQ(schedule.At(2), 0.5);
  EXPECT_EQ(schedule.At(3), 0.25);
  EXPECT_EQ(schedule.At(4), 0);
  EXPECT_EQ(schedule.At(5), 0);
}

TEST(LearningRateTest, LinearFallsFromTheEndOfTheWarmUp) {
  const auto schedule = Make({.shape = Shape::kLinear, .peak = 8, .steps = 7, .warmup = 3, .final_fraction = 0.5});
  EXPECT_EQ(schedule.At(2), 8);
  EXPECT_EQ(schedule.At(3), 7);
  EXPECT_EQ(schedule.At(4), 6);
  EXPECT_EQ(schedule.At(5), 5);
  EXPECT_EQ(schedule.At(6), 4);
  EXPECT_EQ(schedule.At(7), 4);
  EXPECT_EQ(schedule.decline_begin(), 2);
}

TEST(LearningRateTest, CosineFollowsItsFormula) {
  const auto schedule = Make({.shape = Shape::kCosine, .peak = 2, .steps = 104, .warmup = 4, .final_fraction = 0.25});
  EXPECT_EQ(schedule.At(3), 2);
  for (int64_t step = 4; step < 103; ++step) {
    const double x = (step - 3) / 100.0;
    EXPECT_DOUBLE_EQ(schedule.At(step), 2 * (0.25 + 0.75 * 0.5 * (1 + std::cos(std::numbers::pi * x))));
  }
  EXPECT_DOUBLE_EQ(schedule.At(53), 2 * (0.25 + 0.75 / 2));
  EXPECT_EQ(schedule.At(103), 0.5);
  EXPECT_EQ(schedule.At(1000000), 0.5);
}

TEST(LearningRateTest, WarmupStableDecayHasThreeParts) {
  const auto schedule = Make({.shape = Shape::kWarmupStableDecay,
                              .peak = 1,
                              .steps = 20,
                              .warmup = 4,
                              .final_fraction = 0,
                              .decay_fraction = 0.2});
  EXPECT_EQ(schedule.At(0), 0.25);
  for (int64_t step = 3; step <= 15; ++step) EXPECT_EQ(schedule.At(step), 1);
  EXPECT_EQ(schedule.decline_begin(), 15);
  EXPECT_EQ(schedule.At(16), 0.75);
  EXPECT_EQ(schedule.At(17), 0.5);
  EXPECT_EQ(schedule.At(18), 0.25);
  EXPECT_EQ(schedule.At(19), 0);
  EXPECT_EQ(schedule.At(20), 0);
}

TEST(LearningRateTest, DecayMayTakeTheWholeRun) {
  const auto schedule =
      Make({.shape = Shape::kWarmupStableDecay, .peak = 1, .steps = 4, .final_fraction = 0, .decay_fraction = 1});
  EXPECT_EQ(schedule.At(0), 0.75);
  EXPECT_EQ(schedule.At(3), 0);
}

TEST(LearningRateTest, DecayTakesAtLeastOneStep) {
  const auto schedule =
      Make({.shape = Shape::kWarmupStableDecay, .peak = 1, .steps = 10, .final_fraction = 0, .decay_fraction = 1e-9});
  EXPECT_EQ(schedule.At(8), 1);
  EXPECT_EQ(schedule.At(9), 0);
}

TEST(LearningRateTest, RefusesAWarmUpAndADecayThatOverlap) {
  const auto status = LearningRateSchedule::Create(
                          {.shape = Shape::kWarmupStableDecay, .steps = 10, .warmup = 6, .decay_fraction = 0.5})
                          .status();
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("a warm-up of 6 steps and a decay of 5 do not fit into a run of 10; shorten the warm-up to 5"));
}

TEST(LearningRateTest, ARunMayEndBeforeItHasWarmedUp) {
  for (const Shape shape : {Shape::kConstant, Shape::kLinear, Shape::kCosine}) {
    const auto schedule = Make({.shape = shape, .peak = 1, .steps = 4, .warmup = 8});
    EXPECT_EQ(schedule.At(3), 0.5);
    EXPECT_EQ(schedule.At(7), 1);
    EXPECT_EQ(schedule.At(8), 1);
  }
}

TEST(LearningRateTest, ARunOfOneStepHasARate) {
  EXPECT_EQ(Make({.shape = Shape::kLinear, .peak = 1, .steps = 1}).At(0), 1);
  EXPECT_EQ(Make({.shape = Shape::kCosine, .peak = 1, .steps = 1}).At(0), 1);
  EXPECT_EQ(Make({.shape = Shape::kConstant, .peak = 1, .steps = 1}).At(0), 1);
}

TEST(LearningRateTest, WarmUpCountsStepsSamplesOrTokens) {
  const auto steps = [](int64_t warmup, WarmupUnit unit) {
    return Make({.steps = 100, .warmup = warmup, .warmup_unit = unit, .global_batch = 8, .sequence_length = 32})
        .warmup_steps();
  };
  EXPECT_EQ(steps(5, WarmupUnit::kSteps), 5);
  EXPECT_EQ(steps(40, WarmupUnit::kSamples), 5);
  EXPECT_EQ(steps(41, WarmupUnit::kSamples), 6);
  EXPECT_EQ(steps(1, WarmupUnit::kSamples), 1);
  EXPECT_EQ(steps(0, WarmupUnit::kTokens), 0);
  EXPECT_EQ(steps(1280, WarmupUnit::kTokens), 5);
  EXPECT_EQ(steps(1281, WarmupUnit::kTokens), 6);
  EXPECT_EQ(steps(std::numeric_limits<int64_t>::max(), WarmupUnit::kTokens), (int64_t{1} << 55));
}

TEST(LearningRateTest, TheScaleMultipliesTheWholeCurve) {
  LearningRateOptions options = {
      .shape = Shape::kCosine, .peak = 0.5, .steps = 20, .warmup = 5, .base_batch = 16, .global_batch = 64};
  const auto none = Make(options);
  options.scaling = LearningRateScaling::kLinear;
  const auto linear = Make(options);
  options.scaling = LearningRateScaling::kSquareRoot;
  const auto square_root = Make(options);
  EXPECT_EQ(none.peak(), 0.5);
  for (int64_t step = 0; step < 25; ++step) {
    EXPECT_EQ(linear.At(step), 4 * none.At(step));
    EXPECT_EQ(square_root.At(step), 2 * none.At(step));
  }
}

TEST(LearningRateTest, RefusesWhatIsOutOfRange) {
  const auto refusal = [](const LearningRateOptions& options) {
    return std::string(LearningRateSchedule::Create(options).status().message());
  };
  const double nan = std::nan("");
  EXPECT_THAT(refusal({.peak = -1}), HasSubstr("at least 0; found -1"));
  EXPECT_THAT(refusal({.peak = nan}), HasSubstr("finite"));
  EXPECT_THAT(refusal({.steps = 0}), HasSubstr("number of steps must be at least 1; found 0"));
  EXPECT_THAT(refusal({.warmup = -1}), HasSubstr("warm-up must be at least 0"));
  EXPECT_THAT(refusal({.final_fraction = 1.5}), HasSubstr("final_fraction must lie in [0, 1]; found 1.5"));
  EXPECT_THAT(refusal({.final_fraction = nan}), HasSubstr("final_fraction"));
  EXPECT_THAT(refusal({.decay_fraction = 0}), HasSubstr("decay_fraction must lie in (0, 1]; found 0"));
  EXPECT_THAT(refusal({.scaling = LearningRateScaling::kLinear}), HasSubstr("base_batch of at least 1; found 0"));
  EXPECT_THAT(refusal({.global_batch = 0}), HasSubstr("global batch"));
  EXPECT_THAT(refusal({.peak = 1e308, .scaling = LearningRateScaling::kLinear, .base_batch = 1, .global_batch = 100}),
              HasSubstr("to 100 is not finite"));
  const int64_t huge = int64_t{1} << 40;
  EXPECT_THAT(refusal({.warmup = 1, .warmup_unit = WarmupUnit::kTokens, .global_batch = huge, .sequence_length = huge}),
              HasSubstr("too many tokens"));
}

TEST(LearningRateTest, OptionsAreThoseOfTheJob) {
  Job job;
  job.lr_schedule = {.shape = Shape::kWarmupStableDecay, .warmup_tokens = 60, .final_fraction = 0.5};
  job.lr_schedule.decay_fraction = 0.25;
  job.optimizer.learning_rate = 0.2;
  job.optimizer.scaling = LearningRateScaling::kLinear;
  job.optimizer.base_batch = 4;
  job.batch = {.global_batch = 8, .sequence_length = 3};
  const auto schedule = Make(LearningRateOptionsFor(job, 20));
  EXPECT_DOUBLE_EQ(schedule.peak(), 0.4);
  EXPECT_EQ(schedule.warmup_steps(), 3);  // ceil(60 / (8 x 3))
  EXPECT_EQ(schedule.decline_begin(), 14);
  EXPECT_DOUBLE_EQ(schedule.At(19), 0.2);
  job.lr_schedule.warmup_tokens = 0;
  job.lr_schedule.warmup_samples = 9;
  EXPECT_EQ(Make(LearningRateOptionsFor(job, 20)).warmup_steps(), 2);
  job.lr_schedule.warmup_steps = 5;  // A valid job has only one of them.
  EXPECT_EQ(Make(LearningRateOptionsFor(job, 20)).warmup_steps(), 5);
}

// A group of LION once took the rate of an SGD job, a thousand times what LION needs, without a word.
TEST(LearningRateTest, AGroupWhoseRuleNeedsAnotherRateIsNamedWithTheUsualRates) {
  OptimizerConfig config = {.kind = OptimizerKind::kSgd, .learning_rate = 0.1};
  config.groups = {{.parameters = {"*norm*"}}, {.parameters = {"head*", "embedding*"}, .kind = OptimizerKind::kLion}};
  EXPECT_THAT(
      LearningRateRemarks(config),
      ElementsAre("optimizer.groups[1] (head*, embedding*) has rule LION and takes the learning rate of the job, "
                  "0.1, unchanged; usual are 0.0001 for LION and 0.1 for SGD, so give the group a "
                  "learning_rate_factor, such as 0.001"));
  OptimizerConfig with_factor = config, with_rate = config, with_alike = config;
  with_factor.groups[1].learning_rate_factor = 0.002;
  with_rate.learning_rate = 1e-4;
  with_alike.kind = OptimizerKind::kAdamW, with_alike.learning_rate = 3e-4;
  with_alike.groups[1].kind = OptimizerKind::kAdamW8Bit;
  for (const OptimizerConfig& good : {with_factor, with_rate, with_alike}) {
    EXPECT_THAT(LearningRateRemarks(good), ElementsAre());
  }
  // All pairs of rules whose usual rates are of one kind.
  for (const OptimizerEntry& job : Optimizers()) {
    for (const OptimizerEntry& group : Optimizers()) {
      OptimizerConfig pair = {.kind = job.kind, .learning_rate = job.defaults.learning_rate};
      pair.groups = {{.parameters = {"*"}, .kind = group.kind}};
      const bool alike = job.defaults.learning_rate == group.defaults.learning_rate;
      EXPECT_EQ(LearningRateRemarks(pair).empty(), alike || job.Reads("relative_step") || group.Reads("relative_step"))
          << job.name << group.name;
    }
  }
}

}  // namespace
}  // namespace shale
