// Steps that run as graphs, on the CUDA backend without a GPU: the laws that make them another way to say the same.
//
// K micro-batches.
#include <algorithm>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/runtime/cpu_backend.h"
#include "engine/runtime/cuda_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/host/host_products.h"
#include "kernels/cuda/host/stand_in_runtime.h"
#include "kernels/reference/reference_ops.h"
#include "tests/engine/job_harness.h"
#include "tests/engine/tested_backend.h"

namespace shale::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Of three steps the second one captures, the third one launches what is there.
RunOptions OneRank(Schedule schedule, int steps = 3) {
  RunOptions options;
  options.model = SmallMlp();
  options.step.strategy = Strategy::kFull;
  options.step.schedule = schedule;
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

// Returns the number of graphs.
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

TEST(CudaGraphsTest, GraphsChangeNoBitsAndTheirNumberDoesNotGrowWithMicroBatches) {
  // What comes before the micro-batches, the first, the others, what comes after them.
  EXPECT_EQ(ExpectGraphsChangeNoBits(OneRank(Schedule::kSharded), TwoBatches(1), "K = 1"), 3);
  EXPECT_EQ(ExpectGraphsChangeNoBits(OneRank(Schedule::kSharded), TwoBatches(2), "K = 2"), 4);
  EXPECT_EQ(ExpectGraphsChangeNoBits(OneRank(Schedule::kSharded), TwoBatches(5), "K = 5"), 4);
  EXPECT_EQ(ExpectGraphsChangeNoBits(OneRank(Schedule::kDeferred), TwoBatches(3), "DEFERRED"), 4);
}

TEST(CudaGraphsTest, ADecoderToo) {
  RunOptions options = OneRank(Schedule::kSharded);
  options.model = SmallDecoder();
  options.dtype = DType::kBFloat16;
  ExpectGraphsChangeNoBits(options, {RandomTokens(2, 11, SmallDecoder().vocabulary, 3)}, "decoder");
}

TEST(CudaGraphsTest, EachSlotOfALayeredStepHasItsOwn) {
  const auto graphs = [](int64_t K) {
    return ExpectGraphsChangeNoBits(OneRank(Schedule::kLayered), TwoBatches(K), absl::StrCat("K = ", K));
  };
  const size_t two = graphs(2), four = graphs(4);
  EXPECT_EQ(four - two, graphs(6) - four);
}

TEST(CudaGraphsTest, ASkippedStepIsSkipped) {
  std::vector<Tokens> batches = TwoBatches(2);
  std::fill(batches[1].targets.begin(), batches[1].targets.end(), -1);
  ExpectGraphsChangeNoBits(OneRank(Schedule::kSharded, 4), batches, "no valid token");
  RunOptions options = OneRank(Schedule::kSharded, 4);
  std::map<std::string, std::vector<float>> before;
  options.edit_weights = [&](const std::string& name, std::vector<float>& values) {
    if (name == "head.weight") values[3] = std::numeric_limits<float>::infinity();
    before[name] = values;
  };
  const RunResult result = MustRun(options, TwoBatches(2));
  EXPECT_TRUE(result.non_finite);
  EXPECT_EQ(result.weights, before);
}

TEST(CudaGraphsTest, ATracedStepAmongThemIsIssuedOneByOne) {
  RunOptions options = OneRank(Schedule::kSharded, 5);
  std::vector<size_t> traced;
  options.before_step = [&](int step, Executor& executor) {
    traced.push_back(executor.times().size());
    executor.SetTracing(step == 2);
  };
  ExpectGraphsChangeNoBits(options, TwoBatches(3), "traced");
  ASSERT_EQ(traced.size(), 5);
  EXPECT_EQ(traced[2], 0);
  EXPECT_GT(traced[3], 50);
}

TEST(CudaGraphsTest, ASynchronousRunCapturesNothing) {
  RunOptions options = OneRank(Schedule::kSharded, 2);
  options.synchronous = true;
  EXPECT_EQ(MustRun(options, TwoBatches(2)).graphs, 0);
}

TEST(CudaGraphsTest, SeveralRanksAndDevicesWithoutGraphsAreRefused) {
  RunOptions options = OneRank(Schedule::kSharded);
  options.step.ranks = 2;
  const absl::Status ranks = RunJob(options, TwoBatches(2)).status();
  EXPECT_EQ(ranks.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(ranks.message()), HasSubstr("runtime.graphs wants one rank, found All"));
  const std::unique_ptr<Backend> cpu = CreateCpuBackend({.ops = OpsKind::kReference});
  options.step.ranks = 1;
  options.backend = cpu.get();
  const absl::Status device = RunJob(options, TwoBatches(2)).status();
  EXPECT_EQ(device.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(device.message()), HasSubstr("runtime.graphs wants a device that can capture"));
}

TEST(CudaGraphsTest, AFailedKernelIsAnErrorThatNamesTheLastGraphToFinish) {
  auto runtime = std::make_shared<cuda_on_host::StandInRuntime>();
  const std::unique_ptr<Backend> backend = CreateCudaBackend(runtime, {.create_products = [](auto&&...) {
    return *cuda_on_host::CreateHostProducts(CreateReferenceOps());
  }});
  RunOptions options = OneRank(Schedule::kSharded, 5);
  options.backend = backend.get();
  int64_t launches = 0;
  options.before_step = [&](int step, Executor&) {
    // Somewhere in the second micro-batch of a step that launches what was captured before.
    if (step == 3) runtime->FailKernel(60);
    launches = runtime->graph_launches();
  };
  const absl::Status status = RunJob(options, TwoBatches(4)).status();
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(launches, 2 * 6);  // Two steps of four micro-batches, with what comes before and after them.
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("an illegal memory access was encountered"),
                    ContainsRegex("the last to finish was the graph of instructions [0-9]+ to [0-9]+ \\([A-Za-z]+, "
                                  "unit [a-z0-9.]+, micro-batch [0-3]\\)")));
}

}  // namespace
}  // namespace shale::testing
