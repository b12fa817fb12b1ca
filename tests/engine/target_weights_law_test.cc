// The laws of steps whose targets have weights.
//
// W ranks, K micro-batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/law_support.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

// As in tests/engine/laws_test.cc: sums of fp32 in another order.
constexpr double kReordered = 2e-5;
constexpr int64_t kLength = 11;
constexpr TargetWeights kBoth[] = {TargetWeights::kOverTokens, TargetWeights::kOverWeights};

RunOptions With(const Combination& c, int64_t ranks, TargetWeights weights) {
  RunOptions options;
  options.step.strategy = c.strategy;
  options.step.accumulation = c.accumulation;
  options.step.mesh = {.shard = ranks};
  options.target_weights = weights;
  return options;
}

Tokens WithWeights(Tokens tokens, const std::vector<float>& pattern) {
  for (size_t i = 0; i < tokens.weights.size(); ++i) tokens.weights[i] = pattern[i % pattern.size()];
  return tokens;
}

Tokens Batch(int64_t sequences) { return RandomTokens(sequences, kLength, SmallDecoder().vocabulary, 7); }

void ExpectEqualBits(const RunResult& a, const RunResult& b, const std::string& what) {
  ASSERT_FALSE(a.losses.empty()) << what;
  EXPECT_EQ(a.losses, b.losses) << what;
  EXPECT_EQ(a.norms, b.norms) << what;
  EXPECT_EQ(a.gradients, b.gradients) << what;
  EXPECT_EQ(a.weights, b.weights) << what;
}

std::string Name(const Combination& c, int64_t ranks, TargetWeights weights) {
  return absl::StrCat(ToString(c.strategy), " ", ToString(c.accumulation), " W=", ranks,
                      weights == TargetWeights::kOverTokens ? " over tokens" : " over weights");
}

TEST(TargetWeightLaws, WeightsOfOneChangeNoBits) {
  const Tokens tokens = WithWeights(Batch(5), {1});
  for (const Combination& c : Combinations()) {
    const RunResult none = MustRun(With(c, 2, TargetWeights::kNone), {tokens});
    for (const TargetWeights weights : kBoth) {
      const RunResult ones = MustRun(With(c, 2, weights), {tokens});
      ExpectEqualBits(ones, none, Name(c, 2, weights));
      EXPECT_EQ(ones.global_weight, static_cast<double>(ones.global_tokens));
    }
  }
}

TEST(TargetWeightLaws, ZerosAndOnesAreAMask) {
  const Tokens weighted = WithWeights(Batch(5), {1, 0, 0, 1, 0});
  Tokens masked = weighted;
  for (size_t i = 0; i < masked.targets.size(); ++i) {
    if (masked.weights[i] == 0) masked.targets[i] = -1;
  }
  for (const Combination& c : Combinations()) {
    ExpectEqualBits(MustRun(With(c, 2, TargetWeights::kOverWeights), {weighted}),
                    MustRun(With(c, 2, TargetWeights::kNone), {masked}), Name(c, 2, TargetWeights::kOverWeights));
  }
}

TEST(TargetWeightLaws, TheOppositeWeightsGiveTheOppositeGradient) {
  RunOptions options = With({Strategy::kFullShard, Accumulation::kSharded}, 2, TargetWeights::kNone);
  const RunResult none = MustRun(options, {Batch(5)});
  for (const TargetWeights weights : kBoth) {
    options.target_weights = weights;
    RunResult opposite = MustRun(options, {WithWeights(Batch(5), {-1})});
    ASSERT_FALSE(opposite.losses.empty());
    EXPECT_EQ(opposite.losses[0], -none.losses[0]);
    EXPECT_EQ(opposite.norms, none.norms);
    for (auto& [name, gradient] : opposite.gradients) {
      for (float& g : gradient) g = -g;
    }
    EXPECT_EQ(opposite.gradients, none.gradients);
  }
}

// The weights are of both signs and differ from rank to rank, so a denominator that a rank or a micro-batch takes for
// itself shows at once.
TEST(TargetWeightLaws, EveryNumberOfRanksAndAccumulationAgreesWithOneBatchOnOneRank) {
  for (const int64_t sequences : {3, 7}) {
    const Tokens tokens = WithWeights(Batch(sequences), {0.25f, -1.5f, 0, 3, 0.5f, -0.125f, 2});
    for (const TargetWeights weights : kBoth) {
      RunOptions options = With({Strategy::kFullShard, Accumulation::kSharded}, 1, weights);
      options.micro_batch = sequences;
      const RunResult one = MustRun(options, {tokens});
      ASSERT_FALSE(one.losses.empty());
      for (const Combination& c : Combinations()) {
        for (const int64_t ranks : {1, 2, 3}) {
          if (ranks == 1 && c.strategy != Strategy::kFullShard) continue;
          const std::string what = absl::StrCat(Name(c, ranks, weights), " G=", sequences);
          const RunResult result = MustRun(With(c, ranks, weights), {tokens});
          ASSERT_FALSE(result.losses.empty()) << what;
          EXPECT_NEAR(result.losses[0], one.losses[0], kReordered * std::abs(one.losses[0])) << what;
          EXPECT_EQ(result.global_tokens, one.global_tokens) << what;
          EXPECT_EQ(result.global_weight, one.global_weight) << what;  // Multiples of 1/8: sums are exact.
          std::string worst;
          EXPECT_LE(LargestDistance(result.gradients, one.gradients, &worst), kReordered) << what << ": " << worst;
          EXPECT_EQ(result.measured_peak_bytes, result.plan.peak_bytes) << what;
        }
      }
    }
  }
}

TEST(TargetWeightLaws, AModelThatReadsOnlyTheLastTargetReadsOnlyItsWeight) {
  RunOptions options = With({Strategy::kFullShard, Accumulation::kSharded}, 2, TargetWeights::kOverWeights);
  options.model = SmallMlp();
  Tokens tokens = WithWeights(RandomTokens(5, kLength, SmallMlp().vocabulary, 8, /*masks=*/false), {2, -1, 0.5f});
  const RunResult before = MustRun(options, {tokens});
  for (int64_t i = 0; i < 5 * kLength; ++i) {
    if (i % kLength != kLength - 1) tokens.weights[i] = 77;
  }
  ExpectEqualBits(MustRun(options, {tokens}), before, "weights of positions without a target");
}

TEST(TargetWeightLaws, AStepWithoutWeightSkipsTheUpdate) {
  for (const Clipping clipping : {Clipping::kGlobal, Clipping::kPreviousNorm, Clipping::kPerUnit}) {
    for (const TargetWeights weights : kBoth) {
      RunOptions options = With({Strategy::kFullShard, Accumulation::kSharded}, 2, weights);
      options.step.clipping = clipping;
      options.steps = 3;
      const Tokens some = WithWeights(Batch(4), {0.5f, -2, 1}), none = WithWeights(Batch(4), {0});
      const RunResult with_pause = MustRun(options, {some, none, none});
      options.steps = 1;
      const RunResult once = MustRun(options, {some});
      EXPECT_EQ(with_pause.weights, once.weights);
      ASSERT_EQ(with_pause.losses.size(), 3);
      EXPECT_EQ(with_pause.losses[1], 0);
      EXPECT_FALSE(with_pause.non_finite);
    }
  }
}

// What weights cost: their own buffers, one more number to sum, and nothing else.
TEST(TargetWeightLaws, OnlyStepsWithWeightsHaveRoomForThem) {
  const Tokens tokens = WithWeights(Batch(6), {1});
  const auto count = [&](TargetWeights weights, const auto& counts) {
    const RunResult result = MustRun(With({Strategy::kFullShard, Accumulation::kSharded}, 2, weights), {tokens});
    return counts(result.step.program);
  };
  const auto named = [](const StepProgram& program) {
    return std::count_if(program.buffers.begin(), program.buffers.end(), [](const Buffer& buffer) {
      return buffer.name == "target_weights" || buffer.name == "weight_total";
    });
  };
  const auto collectives = [](const StepProgram& program) {
    return std::count_if(program.instructions.begin(), program.instructions.end(),
                         [](const Instruction& i) { return std::holds_alternative<Collective>(i.action); });
  };
  EXPECT_EQ(count(TargetWeights::kNone, named), 0);
  EXPECT_EQ(count(TargetWeights::kOverWeights, named), 2);
  EXPECT_EQ(count(TargetWeights::kOverWeights, collectives), count(TargetWeights::kNone, collectives) + 1);
}

}  // namespace
}  // namespace shale::testing
