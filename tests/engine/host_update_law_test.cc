// The laws of updates on the host: where the update runs must not change what a step computes, and the arena holds no
// masters and moments at all.
//
// On the CPU both updates run the same kernels. On CUDA they run the kernels of two devices. These round every
// operation alike on a CPU with fused multiply-add: CUDA kernels fuse what the CPU's kernels fuse and nothing else
// (-fmad=false in tools/build_defs/cuda.bzl). The stand-ins show it for each rule.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/law_support.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

void ExpectSame(const RunResult& host, const RunResult& same, size_t steps, const std::string& what) {
  ASSERT_EQ(same.losses.size(), steps) << what;
  EXPECT_EQ(host.losses, same.losses) << what;
  EXPECT_EQ(host.norms, same.norms) << what;
  EXPECT_EQ(host.weights, same.weights) << what;
  EXPECT_EQ(host.gradients, same.gradients) << what;
  EXPECT_EQ(host.measured_peak_bytes, host.plan.peak_bytes) << what;
}

TEST(HostUpdateLaws, AnUpdateOnTheHostChangesNoBits) {
  // One job in five or in 41 reaches every value of every field.
  ForEachUpdate(TestsEveryCombination() ? 5 : 41, kStoredWeights,
                [](int job, RunOptions options, const Tokens& tokens, const std::string& name) {
                  options.step.clipping = job % 3 == 0 ? Clipping::kGlobal : Clipping::kPerUnit;
                  options.step.snapshot = job % 2 == 0;
                  options.reads_gradients = job % 7 == 0;
                  const RunResult same = MustRun(options, tokens);
                  options.step.update_device = UpdateDevice::kHost;
                  for (bool parameters : {false, true}) {
                    if (parameters && options.step.strategy != Strategy::kFullShard) continue;
                    options.step.offload_state = {.parameters = parameters};
                    ExpectSame(MustRun(options, tokens), same, 2, absl::StrCat(name, " ", parameters));
                  }
                });
}

TEST(HostUpdateLaws, AllOptimizersUpdateTheSameBits) {
  for (const OptimizerEntry& entry : Optimizers()) {
    if (entry.composed) continue;  // Its moments stay on the device.
    for (bool lean : {false, true}) {
      RunOptions options = OptionsOf(entry, lean, MasterWeights::kFloat32);
      options.step.mesh = {.shard = TestsEveryCombination() ? 3 : 1};
      options.steps = 2;
      const Tokens tokens = RandomTokens(options.step.mesh.shard, 11, SmallDecoder().vocabulary, 32);
      const RunResult same = MustRun(options, tokens);
      options.step.update_device = UpdateDevice::kHost;
      ExpectSame(MustRun(options, tokens), same, 2, absl::StrCat(entry.name, " ", lean));
    }
  }
}

// The copy of the weights in host memory must survive an update that is skipped.
TEST(HostUpdateLaws, ASkippedUpdateLeavesTheWeightsAlone) {
  RunOptions options;
  options.dtype = DType::kBFloat16;
  options.step.mesh = {.shard = 2};
  options.steps = 2;
  options.edit_weights = [](const std::string&, std::vector<float>& values) {
    values[0] = std::numeric_limits<float>::infinity();
  };
  const Tokens tokens = RandomTokens(2, 11, SmallDecoder().vocabulary, 33);
  const RunResult same = MustRun(options, tokens);
  EXPECT_TRUE(same.non_finite);
  options.step.update_device = UpdateDevice::kHost;
  const RunResult host = MustRun(options, tokens);
  EXPECT_TRUE(host.non_finite);
  EXPECT_EQ(host.weights, same.weights);
}

// With one rank the arena keeps weights and gradients alone: masters, moments and a copy of the weights are in host
// memory, to the byte.
TEST(HostUpdateLaws, OnlyWeightsAndGradientsAreInTheArena) {
  for (UpdateTime update : {UpdateTime::kAfterBackward, UpdateTime::kInBackward}) {
    RunOptions options;
    options.dtype = DType::kBFloat16;
    options.step.update = update;
    options.reads_gradients = false;
    const Tokens tokens = RandomTokens(1, 11, SmallDecoder().vocabulary, 34);
    const RunResult same = MustRun(options, tokens);
    options.step.update_device = UpdateDevice::kHost;
    const RunResult host = MustRun(options, tokens);
    ASSERT_FALSE(host.losses.empty());
    int64_t state = 0, weights = 0, largest = 0;
    for (const GroupState& g : host.step.state.groups) {
      state += g.master.extent_bytes() + g.states[0].extent_bytes() + g.states[1].extent_bytes();
      weights += g.host_weight.extent_bytes();
      largest = std::max(largest, g.own_gradient.extent_bytes());
    }
    EXPECT_EQ(host.plan.persistent_bytes, same.plan.persistent_bytes - state) << ToString(update);
    EXPECT_EQ(host.plan.persistent_host_bytes, state + weights) << ToString(update);
    EXPECT_LT(host.plan.peak_bytes, same.plan.peak_bytes) << ToString(update);
    // Beside them, host memory holds the gradients of two groups and a few scalars.
    EXPECT_LE(host.plan.host_bytes, state + weights + 2 * largest + 16 * 256) << ToString(update);
  }
}

TEST(HostUpdateLaws, WhatIsOnTheHostAnywayIsNotNamed) {
  RunOptions options;
  options.step.update_device = UpdateDevice::kHost;
  options.step.offload_state = {.moments = true};
  EXPECT_EQ(RunJob(options, RandomTokens(1, 11, SmallDecoder().vocabulary, 35)).status(),
            absl::InvalidArgumentError("an update on the HOST keeps moments and masters in host memory for good; leave "
                                       "MOMENTS and MASTERS out"));
}

}  // namespace
}  // namespace shale::testing
