// The laws of training steps for the example models of tools/examples, which programs bring themselves: how a job is
// divided does not change what it computes, recomputation and offload change no bit, and the measured peak is the
// planned one. This is a library; each test links the backend on which it checks them.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/example_models.h"
#include "tests/engine/job_harness.h"

namespace shale::testing {
namespace {

constexpr int64_t kBlocks = 3, kLength = 7;

class ExampleLaws : public ::testing::TestWithParam<std::tuple<Example, DType>> {
 protected:
  RunOptions Options(int64_t ranks, int64_t micro_batch) const {
    const auto& [example, dtype] = GetParam();
    CustomModel model = example.model(kBlocks);
    model.vocabulary = example.vocabulary;
    RunOptions options;
    options.model = model;
    options.dtype = dtype;
    options.micro_batch = micro_batch;
    options.target_weights = example.weights;
    options.step.mesh = {.shard = ranks};
    return options;
  }
  RunResult MustRun(const RunOptions& options, int64_t sequences) const {
    absl::StatusOr<RunResult> result = RunJob(options, std::get<Example>(GetParam()).data(sequences, kLength));
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) return {};
    EXPECT_EQ(result->measured_peak_bytes, result->plan.peak_bytes);
    return *std::move(result);
  }
};

TEST_P(ExampleLaws, EveryStrategyAndAccumulationAgreesWithOneRankAndOneBatch) {
  // See kReordered and kReorderedBf16 in laws_test.cc.
  const double tolerance = std::get<DType>(GetParam()) == DType::kFloat32 ? 2e-5 : 1e-2;
  const RunResult one = MustRun(Options(1, 7), 7);
  ASSERT_FALSE(one.losses.empty());
  for (const Combination& c : Combinations()) {
    RunOptions options = Options(3, 1);
    options.step.strategy = c.strategy;
    options.step.accumulation = c.accumulation;
    const RunResult run = MustRun(options, 7);
    const std::string name = absl::StrCat(ToString(c.strategy), " ", ToString(c.accumulation));
    ASSERT_FALSE(run.losses.empty()) << name;
    EXPECT_NEAR(run.losses[0], one.losses[0], tolerance * std::abs(one.losses[0])) << name;
    EXPECT_EQ(run.global_tokens, one.global_tokens) << name;
    std::string worst;
    EXPECT_LE(LargestDistance(run.gradients, one.gradients, &worst), tolerance) << name << ": " << worst;
  }
}

TEST_P(ExampleLaws, RecomputationAndOffloadChangeNoBits) {
  using enum CheckpointingPreset;
  RunOptions options = Options(2, 1);
  options.steps = 2;
  const RunResult none = MustRun(options, 4);
  ASSERT_FALSE(none.losses.empty());
  for (const ActivationOptions& activations :
       {ActivationOptions{.preset = kCheap}, ActivationOptions{.preset = kFeedForward},
        ActivationOptions{.preset = kBlock}, ActivationOptions{.preset = kBlock, .segment_blocks = 2},
        ActivationOptions{.offload = {"*"}},
        ActivationOptions{.patterns = {std::get<Example>(GetParam()).activation, "*norm*"}}}) {
    options.step.activations = activations;
    const RunResult run = MustRun(options, 4);
    const std::string name = absl::StrCat(ToString(activations.preset), " ", activations.segment_blocks);
    EXPECT_EQ(run.losses, none.losses) << name;
    EXPECT_EQ(run.gradients, none.gradients) << name;
    EXPECT_EQ(run.weights, none.weights) << name;
  }
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<Example, DType>>& test) {
  const auto& [example, dtype] = test.param;
  return absl::StrCat(example.name, dtype == DType::kFloat32 ? "Fp32" : "Bf16");
}

INSTANTIATE_TEST_SUITE_P(Models, ExampleLaws,
                         ::testing::Combine(::testing::ValuesIn(Examples()),
                                            ::testing::Values(DType::kFloat32, DType::kBFloat16)),
                         NameOf);

}  // namespace
}  // namespace shale::testing
