// The laws of steps in fp16, whose gradients have a loss scale as a factor.
#include <gtest/gtest.h>

#include <cmath>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/golden_mlp.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/law_support.h"
#include "tests/engine/loss_scale_golden.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

RunOptions ScaledOptions(double init_scale) {
  RunOptions options = GoldenMlp();
  options.dtype = DType::kFloat16;
  options.step.loss_scaling = LossScaling{.init_scale = init_scale, .growth_interval = 15};
  Hyperparameters h = EntryOf(OptimizerKind::kAdamW).defaults;
  h.epsilon = 1e-3;
  h.weight_decay = 0;
  options.step.optimizer = MakeOptimizer(OptimizerKind::kAdamW, h);
  return options;
}

RunResult MustRunScaled(const RunOptions& options) {
  absl::StatusOr<RunResult> result = RunJob(options, GoldenBatches());
  EXPECT_TRUE(result.ok()) << result.status();
  if (!result.ok()) return {};
  EXPECT_EQ(result->measured_peak_bytes, result->plan.peak_bytes);
  return *std::move(result);
}

// The golden is that of torch.amp.GradScaler. In its first steps, and then whenever the scale has grown too much,
// gradients overflow. Losses agree to the rounding of fp16 activations, because sums have another order than torch's.
TEST(LossScaleLaws, StepsAndScalesAreThoseOfTorch) {
  struct Case {
    Mesh mesh;
    OpsKind ops = OpsKind::kFast;
  };
  const Case cases[] = {{{1, 1}}, {{1, 1}, OpsKind::kReference}, {{1, 2}}, {{2, 1}}};
  const bool all_steps = TestsEveryCombination() || TestsTheCudaBackend();
  for (const Case& c : cases) {
    if (&c != cases && !TestsEveryCombination()) continue;
    RunOptions options = ScaledOptions(0x1p40);
    options.learning_rate = 7e-4;
    options.step.mesh = c.mesh;
    options.ops = c.ops;
    options.micro_batch = c.mesh.ranks() == 1 ? kGoldenSequences : 1;  // K = 1, or 3.
    options.steps = all_steps ? static_cast<int>(std::size(kScaledLosses)) : 40;
    const RunResult result = MustRunScaled(options);
    ASSERT_EQ(std::ssize(result.losses), options.steps);
    for (int step = 0; step < options.steps; ++step) {
      ASSERT_EQ(std::log2(result.loss_scales[step]), kScaleExponents[step]) << step;
      ASSERT_NEAR(result.losses[step], kScaledLosses[step], 1e-3) << step;
    }
  }
}

TEST(LossScaleLaws, AnOverflowOnOneRankChangesNoWeightOfAnyRank) {
  RunOptions options = ScaledOptions(0x1p18);
  options.steps = 1;
  std::map<std::string, std::vector<float>> before;
  options.edit_weights = [&](const std::string& name, std::vector<float>& values) { before[name] = values; };
  std::vector<Tokens> batches = {GoldenBatches()[0]};
  // One sequence alone counts, on rank 1, so that its gradient is the only one.
  for (int64_t i = 0; i < std::ssize(batches[0].targets); ++i) {
    if (i / kGoldenLength != 1) batches[0].targets[i] = -1;
  }
  for (const Combination& c : Combinations()) {
    for (const Mesh& mesh : {Mesh{1, 3}, Mesh{2, 2}}) {
      if (mesh.replicate > 1 && c.strategy == Strategy::kDdp) continue;
      options.step.strategy = c.strategy;
      options.step.accumulation = c.accumulation;
      options.step.mesh = mesh;
      const absl::StatusOr<RunResult> result = RunJob(options, batches);
      ASSERT_TRUE(result.ok()) << result.status();
      const std::string what = absl::StrCat(ToString(c.strategy), " ", ToString(c.accumulation), " ", mesh.replicate);
      EXPECT_TRUE(result->non_finite) << what;
      EXPECT_TRUE(result->weights == before) << what;
      EXPECT_EQ(result->loss_scales[0], 0x1p17) << what;
      EXPECT_GT(result->losses[0], 1) << what;
      EXPECT_EQ(result->measured_peak_bytes, result->plan.peak_bytes) << what;
    }
  }
}

// Steps that overflow come before a job, which does not know of them: neither weights nor states nor counts changed.
TEST(LossScaleLaws, AStepThatOverflowsLeavesNoTraceInAnyOptimizer) {
  for (const OptimizerEntry& entry : Optimizers()) {
    RunOptions options = ScaledOptions(0x1p22);
    options.step.mesh = {.shard = 2};
    options.micro_batch = 1;
    options.step.optimizer = MakeOptimizer(entry.kind, entry.defaults);
    options.steps = 6;
    const std::vector<Tokens> batches = {GoldenBatches()[0]};
    const absl::StatusOr<RunResult> overflows = RunJob(options, batches);
    ASSERT_TRUE(overflows.ok()) << overflows.status();
    const double scale = overflows->loss_scales.back();
    ASSERT_LT(scale, 0x1p22) << entry.name;
    options.step.loss_scaling->init_scale = scale;
    options.steps -= static_cast<int>(22 - std::log2(scale));
    ASSERT_GE(options.steps, 2) << entry.name;
    const absl::StatusOr<RunResult> without = RunJob(options, batches);
    ASSERT_TRUE(without.ok()) << without.status();
    EXPECT_EQ(without->loss_scales.front(), scale) << entry.name;
    EXPECT_EQ(without->losses.back(), overflows->losses.back()) << entry.name;
    EXPECT_TRUE(without->weights == overflows->weights) << entry.name;
  }
}

TEST(LossScaleLaws, StrategiesAndPlacesOfTheStateChangeNoBit) {
  RunOptions options = ScaledOptions(0x1p22);
  options.steps = 8;
  options.step.mesh = {.shard = 2};
  options.step.accumulation = Accumulation::kNoSync;
  const RunResult want = MustRunScaled(options);
  EXPECT_LT(want.loss_scales[3], 0x1p22);
  EXPECT_EQ(want.loss_scales[7], want.loss_scales[4]) << "no update among these steps";
  const auto expect_same = [&](const std::string& what) {
    const RunResult result = MustRunScaled(options);
    EXPECT_EQ(result.losses, want.losses) << what;
    EXPECT_EQ(result.loss_scales, want.loss_scales) << what;
    EXPECT_TRUE(result.weights == want.weights) << what;
  };
  options.step.accumulation = Accumulation::kLayered;
  expect_same("LAYERED");
  options.step.update_device = UpdateDevice::kHost;
  expect_same("HOST");
  options.step.update_device = UpdateDevice::kSame;
  options.step.offload_state = {.moments = true, .masters = true, .parameters = true};
  expect_same("offloaded");
}

}  // namespace
}  // namespace shale::testing
