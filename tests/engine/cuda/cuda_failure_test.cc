// Tests the errors that a job returns when a GPU fails under it.
#include "engine/run/backends/cuda_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/reference_ops.h"
#include "tests/engine/job_harness.h"
#include "tests/kernels/cuda/host/host_matmuls.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"

namespace shale::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

// Runs two ranks on one GPU, and makes the `nth` of all their kernels fail.
absl::Status RunWithFailure(int nth, bool synchronous) {
  auto runtime = std::make_shared<cuda_on_host::StandInRuntime>();
  const std::unique_ptr<Backend> backend =
      CreateCudaBackend(runtime, {.ranks_per_device = 2, .create_matmuls = [](const CudaDeviceProperties* /*gpu*/) {
                                    return *cuda_on_host::CreateHostMatMuls(CreateReferenceOps());
                                  }});
  runtime->FailKernel(nth);
  RunOptions options;
  options.backend = backend.get();
  options.step.strategy = Strategy::kFullShard;
  options.step.accumulation = Accumulation::kSharded;
  options.step.mesh = {.shard = 2};
  options.steps = 2;
  options.synchronous = synchronous;
  return RunJob(options, RandomTokens(4, 11, SmallDecoder().vocabulary, 1)).status();
}

TEST(CudaFailureTest, AFailedKernelIsAnErrorThatNamesTheLastInstructionsToFinish) {
  // In the first backward, so that either rank has run many instructions on its compute stream.
  for (int nth : {280, 350}) {
    const absl::Status status = RunWithFailure(nth, /*synchronous=*/false);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("an illegal memory access was encountered"),
                      ContainsRegex("the last known to have finished were on stream compute [0-9]+ \\([A-Za-z]+, unit "
                                    "[a-z0-9.]+, micro-batch [0-9]+\\)")))
        << nth;
  }
}

// Regression: the compute stream had no mark before its eighth instruction, so such a failure named other streams only.
TEST(CudaFailureTest, AKernelThatFailsAtOnceIsAnErrorThatNamesTheComputeStreamToo) {
  auto runtime = std::make_shared<cuda_on_host::StandInRuntime>();
  const std::unique_ptr<Backend> backend = CreateCudaBackend(
      runtime, {.create_matmuls = [](auto&&...) { return *cuda_on_host::CreateHostMatMuls(CreateReferenceOps()); }});
  RunOptions options;
  options.backend = backend.get();
  options.before_step = [&](int, int, Executor&) { runtime->FailKernel(3); };
  const absl::Status status = RunJob(options, RandomTokens(4, 11, SmallDecoder().vocabulary, 1)).status();
  EXPECT_THAT(std::string(status.message()), ContainsRegex("on stream compute [0-9]+ \\(MeanFactor, unit -"));
}

TEST(CudaFailureTest, AGpuThatFailsBeforeTheStartIsAnErrorThatNamesWhatWasTried) {
  const absl::Status status = RunWithFailure(20, /*synchronous=*/false);
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("an illegal memory access was encountered"), HasSubstr("before the start")));
}

TEST(CudaFailureTest, OneInstructionAtATimeTheErrorNamesTheInstruction) {
  const absl::Status status = RunWithFailure(150, /*synchronous=*/true);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("an illegal memory access was encountered"),
                    ContainsRegex("instruction [0-9]+ \\([A-Za-z]+, unit [a-z0-9.]+, micro-batch [0-9]+\\): ")));
}

TEST(CudaFailureTest, AFailedKernelOfAGraphIsAnErrorThatNamesTheLastGraphToFinish) {
  auto runtime = std::make_shared<cuda_on_host::StandInRuntime>();
  const std::unique_ptr<Backend> backend = CreateCudaBackend(
      runtime, {.create_matmuls = [](auto&&...) { return *cuda_on_host::CreateHostMatMuls(CreateReferenceOps()); }});
  RunOptions options;
  options.model = SmallMlp();
  options.backend = backend.get();
  options.step.strategy = Strategy::kFullShard;
  options.step.accumulation = Accumulation::kSharded;
  options.steps = 4;
  options.graphs = true;
  int64_t launches = 0;
  options.before_step = [&](int step, int, Executor&) {
    // The failure happens in a step that launches graphs of an earlier step, after its first graph.
    if (step == 3) runtime->FailKernel(60);
    launches = runtime->graph_launches();
  };
  const absl::Status status = RunJob(options, RandomTokens(4, 11, SmallMlp().vocabulary, 1)).status();
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(launches, 3 * 6);  // Three steps, each with four micro-batches and a loop before and after them.
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("an illegal memory access was encountered"),
                    ContainsRegex("the last to finish was the graph of instructions [0-9]+ to [0-9]+ \\([A-Za-z]+, "
                                  "unit [a-z0-9.]+, micro-batch [0-3]\\)")));
}

}  // namespace
}  // namespace shale::testing
