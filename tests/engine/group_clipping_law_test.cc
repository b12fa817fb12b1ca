// The laws of groups of the optimizer that are clipped by the norm of their own gradients.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/golden_mlp.h"
#include "tests/engine/group_clipping_golden.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/law_support.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

// The groups of tests/parity/make_clipping_goldens.py: biases, matrices of hidden layers, and the others.
RunOptions ClippedOptions() {
  RunOptions options = GoldenMlp();
  Hyperparameters h = EntryOf(OptimizerKind::kSgd).defaults;
  h.momentum = 0.9;
  h.weight_decay = 0;
  options.step.optimizer = MakeOptimizer(OptimizerKind::kSgd, h);
  options.step.optimizer_groups.assign(2, options.step.optimizer);
  options.step.optimizer_groups[0].max_gradient_norm = 0.25;
  options.step.optimizer_groups[1].max_gradient_norm = 0.1;
  options.optimizer_groups = {{"*.bias"}, {"hidden.*"}};
  options.max_norm = 0.3;
  options.learning_rate = 0.2;
  return options;
}

// Losses agree to the rounding of fp32 sums, whose order is not torch's; it grows with the momentum of 32 steps.
TEST(GroupClippingLaws, LossesAreThoseOfTorch) {
  for (const Mesh& mesh : {Mesh{1, 1}, Mesh{1, 2}, Mesh{2, 1}, Mesh{2, 3}}) {
    if (mesh.ranks() > 2 && !TestsEveryCombination()) continue;
    RunOptions options = ClippedOptions();
    options.step.mesh = mesh;
    options.micro_batch = mesh.ranks() == 1 ? kGoldenSequences : 1;  // K = 1, or 3.
    options.steps = static_cast<int>(std::size(kGroupClippedLosses));
    const RunResult result = MustRun(options, GoldenBatches());
    ASSERT_EQ(std::ssize(result.losses), options.steps);
    for (int step = 0; step < options.steps; ++step) {
      EXPECT_NEAR(result.losses[step], kGroupClippedLosses[step], 1e-5 * kGroupClippedLosses[step])
          << mesh.replicate << " x " << mesh.shard << ", step " << step;
    }
  }
}

// How the state is divided, where it lies and where it is updated changes no bit.
TEST(GroupClippingLaws, StrategiesAndPlacesOfTheStateChangeNoBit) {
  RunOptions options = ClippedOptions();
  options.steps = 3;
  options.step.accumulation = Accumulation::kLayered;
  options.step.mesh = {.shard = 3};
  options.step.strategy = Strategy::kDdp;
  const RunResult one = MustRun(options, GoldenBatches());
  ASSERT_EQ(one.losses.size(), 3);
  for (Strategy strategy : {Strategy::kZero1, Strategy::kZero2, Strategy::kFullShard}) {
    for (int place = 0; place < 3; ++place) {
      options.step.strategy = strategy;
      options.step.offload_state = {.moments = place == 1};
      options.step.update_device = place == 2 ? UpdateDevice::kHost : UpdateDevice::kSame;
      const RunResult other = MustRun(options, GoldenBatches());
      EXPECT_EQ(other.losses, one.losses) << ToString(strategy) << " " << place;
      EXPECT_EQ(other.weights, one.weights) << ToString(strategy) << " " << place;
      EXPECT_EQ(other.measured_peak_bytes, other.plan.peak_bytes);
    }
  }
}

// The weights of the head are so large that gradients overflow below it only.
TEST(GroupClippingLaws, AnOverflowInOneGroupSkipsAll) {
  RunOptions options = ClippedOptions();
  options.dtype = DType::kFloat16;
  options.step.loss_scaling = LossScaling{.init_scale = 0x1p17};
  options.optimizer_groups = {{"*.bias"}, {"head.*"}};
  options.steps = 1;
  options.edit_weights = [](const std::string& name, std::vector<float>& values) {
    if (name != "head.weight") return;
    for (float& value : values) value *= 50;
  };
  for (const Mesh& mesh : {Mesh{1, 1}, Mesh{2, 2}}) {
    options.step.mesh = mesh;
    options.learning_rate = 0.2;
    const RunResult skips = MustRun(options, GoldenBatches());
    ASSERT_EQ(skips.loss_scales.size(), 1);
    EXPECT_EQ(skips.loss_scales[0], 0x1p16);
    options.learning_rate = 0;
    EXPECT_EQ(skips.weights, MustRun(options, GoldenBatches()).weights);
  }
}

TEST(GroupClippingLaws, WhatHasOtherNormsIsRefusedByName) {
  RunOptions options = ClippedOptions();
  options.step.clipping = Clipping::kPerUnit;
  EXPECT_EQ(RunJob(options, GoldenBatches()).status().message(),
            "a group of the optimizer that is clipped by its own norm needs clipping GLOBAL and update AFTER_BACKWARD");
}

}  // namespace
}  // namespace shale::testing
