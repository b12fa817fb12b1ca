// Laws of steps that run as graphs: they compute the same as steps that are issued one by one.
//
// K micro-batches.
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/run/state/rank_state.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/reference_backend.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

using ::testing::HasSubstr;

RunOptions OneRank(Accumulation accumulation, int steps = 3) {
  RunOptions options;
  options.model = SmallMlp();
  options.step.strategy = Strategy::kFullShard;
  options.step.accumulation = accumulation;
  options.steps = steps;
  options.graphs = true;
  return options;
}

std::vector<Tokens> TwoBatches(int64_t K) {
  return {RandomTokens(K, 11, SmallMlp().vocabulary, 1), RandomTokens(K, 11, SmallMlp().vocabulary, 2)};
}

RunResult MustRun(const RunOptions& options, const std::vector<Tokens>& batches) {
  absl::StatusOr<RunResult> result = RunJob(options, batches);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? *std::move(result) : RunResult{};
}

// Runs the job with and without graphs and expects the same bits. Returns the number of graphs.
size_t ExpectGraphsChangeNoBits(RunOptions options, const std::vector<Tokens>& batches, const std::string& what) {
  options.graphs = true;
  const RunResult with = MustRun(options, batches);
  options.graphs = false;
  options.before_step = nullptr;
  const RunResult without = MustRun(options, batches);
  EXPECT_FALSE(with.losses.empty()) << what;
  EXPECT_EQ(with.losses, without.losses) << what;
  EXPECT_EQ(with.norms, without.norms) << what;
  EXPECT_EQ(with.gradients, without.gradients) << what;
  EXPECT_EQ(with.weights, without.weights) << what;
  EXPECT_EQ(with.measured_peak_bytes, without.measured_peak_bytes) << what;
  EXPECT_EQ(without.graphs, 0) << what;
  return with.graphs;
}

TEST(GraphLaws, GraphsChangeNoBitsAndTheirNumberDoesNotGrowWithMicroBatches) {
  // One graph each for the work before the micro-batches, the first of them, the others, and the work after them.
  EXPECT_EQ(ExpectGraphsChangeNoBits(OneRank(Accumulation::kSharded), TwoBatches(1), "K = 1"), 3);
  EXPECT_EQ(ExpectGraphsChangeNoBits(OneRank(Accumulation::kSharded), TwoBatches(2), "K = 2"), 4);
  EXPECT_EQ(ExpectGraphsChangeNoBits(OneRank(Accumulation::kSharded), TwoBatches(5), "K = 5"), 4);
  EXPECT_EQ(ExpectGraphsChangeNoBits(OneRank(Accumulation::kNoSync), TwoBatches(3), "NO_SYNC"), 4);
}

TEST(GraphLaws, ADecoderToo) {
  RunOptions options = OneRank(Accumulation::kSharded);
  options.model = SmallDecoder();
  options.dtype = DType::kBFloat16;
  ExpectGraphsChangeNoBits(options, {RandomTokens(2, 11, SmallDecoder().vocabulary, 3)}, "decoder");
}

TEST(GraphLaws, OffloadedActivationsToo) {
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kLayered}) {
    RunOptions options = OneRank(accumulation);
    DecoderConfig model = SmallDecoder();
    model.layers = 3;
    options.model = model;
    options.step.activations.offload = {"*"};
    const std::vector<Tokens> batches = {RandomTokens(2, 11, model.vocabulary, 3)};
    ExpectGraphsChangeNoBits(options, batches, std::string(ToString(accumulation)));
    EXPECT_GT(MustRun(options, batches).plan.host_bytes, 0) << ToString(accumulation);
  }
}

TEST(GraphLaws, EachSlotOfALayeredStepHasItsOwn) {
  const auto graphs = [](int64_t K) {
    return ExpectGraphsChangeNoBits(OneRank(Accumulation::kLayered), TwoBatches(K), absl::StrCat("K = ", K));
  };
  const size_t two = graphs(2), four = graphs(4);
  EXPECT_EQ(four - two, graphs(6) - four);
}

TEST(GraphLaws, ASkippedStepIsSkipped) {
  std::vector<Tokens> batches = TwoBatches(2);
  std::fill(batches[1].targets.begin(), batches[1].targets.end(), -1);
  ExpectGraphsChangeNoBits(OneRank(Accumulation::kSharded, 4), batches, "no valid token");
  RunOptions options = OneRank(Accumulation::kSharded, 4);
  std::map<std::string, std::vector<float>> before;
  options.edit_weights = [&](const std::string& name, std::vector<float>& values) {
    if (name == "head.weight") values[3] = std::numeric_limits<float>::infinity();
    before[name] = values;
  };
  const RunResult result = MustRun(options, TwoBatches(2));
  EXPECT_TRUE(result.non_finite);
  EXPECT_EQ(result.weights, before);
}

TEST(GraphLaws, ATracedStepAmongThemIsIssuedOneByOne) {
  RunOptions options = OneRank(Accumulation::kSharded, 5);
  std::vector<size_t> traced;
  options.before_step = [&](int step, int, Executor& executor) {
    traced.push_back(executor.times().size());
    executor.SetTracing(step == 2);
  };
  ExpectGraphsChangeNoBits(options, TwoBatches(3), "traced");
  ASSERT_EQ(traced.size(), 5);
  EXPECT_EQ(traced[2], 0);
  EXPECT_GT(traced[3], 50);
}

// Where a step is checked (runtime.check_every_steps), it pauses before its first update.
TEST(GraphLaws, AStepPausesBeforeAnyInstructionAndGoesOn) {
  for (Accumulation accumulation : {Accumulation::kSharded, Accumulation::kNoSync, Accumulation::kLayered}) {
    RunOptions options = OneRank(accumulation);
    const RunResult expected = MustRun(options, TwoBatches(3));
    const auto instructions = static_cast<InstructionId>(expected.step.program.instructions.size());
    const InstructionId update = FirstWriteOfState(expected.step.state, expected.step.program);
    ASSERT_GE(update, 0);
    for (InstructionId before = update % 7; before < instructions; before += 7) {
      int pauses = 0;
      options.pause = [&](const CompiledStep& step, const MemoryPlan& plan, RankRuntime& rank) {
        const auto digest = [&] { return *DigestOfState(Digested::kAll, step.state, plan, rank); };
        const StateDigest left_by_last_step = digest();
        const auto work = [&pauses, digest, left_by_last_step, reaches = before <= update] {
          ++pauses;
          if (reaches) {
            EXPECT_EQ(digest(), left_by_last_step);
          }
          return absl::OkStatus();
        };
        return Pause{.before = before, .work = work};
      };
      const RunResult result = MustRun(options, TwoBatches(3));
      EXPECT_EQ(result.weights, expected.weights) << before;
      EXPECT_EQ(result.losses, expected.losses) << before;
      EXPECT_EQ(pauses, options.steps) << before;
    }
  }
}

TEST(GraphLaws, ASynchronousRunCapturesNothing) {
  RunOptions options = OneRank(Accumulation::kSharded, 2);
  options.synchronous = true;
  EXPECT_EQ(MustRun(options, TwoBatches(2)).graphs, 0);
}

TEST(GraphLaws, SeveralRanksAndDevicesWithoutGraphsAreRefused) {
  RunOptions options = OneRank(Accumulation::kSharded);
  options.step.mesh = {.shard = 2};
  const absl::Status ranks = RunJob(options, TwoBatches(2)).status();
  EXPECT_EQ(ranks.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(ranks.message()), HasSubstr("runtime.graphs wants one rank, found All"));
  const std::unique_ptr<Backend> cpu = CreateReferenceBackend();
  options.step.mesh = {};
  options.backend = cpu.get();
  const absl::Status device = RunJob(options, TwoBatches(2)).status();
  EXPECT_EQ(device.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(device.message()), HasSubstr("runtime.graphs wants a device that can capture"));
}

}  // namespace
}  // namespace shale::testing
