#include "engine/run/backends/cpu_backend.h"

#include <vector>

#include "engine/plan/config/job.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/hardware_threads.h"

namespace shale::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(CpuBackendTest, AsksForTheThreadsOfOneOfSoManyRanks) {
  std::vector<int64_t> asked;
  const auto backend = CreateCpuBackend({.threads = [&](int64_t ranks) {
    asked.push_back(ranks);
    return 1;
  }});
  backend->CreateOps(3, /*device=*/nullptr);
  backend->machine().create_ops(5);
  EXPECT_THAT(asked, ElementsAre(3, 5));
  asked.clear();
  ASSERT_TRUE(backend->CreateDevices(/*ranks=*/4, /*synchronous=*/false).ok());
  EXPECT_THAT(asked, Not(IsEmpty()));
  EXPECT_THAT(asked, Each(4));
}

TEST(CpuBackendTest, AMachineHasTheBackendsBudgets) {
  const auto backend = CreateCpuBackend();
  const absl::StatusOr<Budget> one = backend->machine().default_budget(1), four = backend->machine().default_budget(4);
  ASSERT_TRUE(one.ok() && four.ok());
  EXPECT_EQ(one->bytes, backend->DefaultBudget(1)->bytes);
  EXPECT_EQ(four->bytes, one->bytes / 4);
  EXPECT_EQ(backend->machine().hardware_threads, HardwareThreads());
  EXPECT_FALSE(backend->machine().WithoutBudget().default_budget);
}

TEST(CpuBackendTest, AMachineKnowsWhatComputesItsMatmuls) {
  const auto cpu_matmuls_of = [](const CpuBackendOptions& options) {
    return CreateCpuBackend(options)->machine().cpu_matmuls;
  };
  EXPECT_EQ(cpu_matmuls_of({}), DefaultCpuMatMuls());
  EXPECT_EQ(cpu_matmuls_of({.cpu_matmuls = CpuMatMuls::kOneDnn}), CpuMatMuls::kOneDnn);
  EXPECT_EQ(cpu_matmuls_of({.cpu_matmuls = CpuMatMuls::kPacked}), CpuMatMuls::kPacked);
  EXPECT_EQ(cpu_matmuls_of({.ops = OpsKind::kReference}), CpuMatMuls::kAuto);
}

TEST(ThreadsPerRankTest, AreTheJobsOrAShareOfTheMachinesAndAtLeastOne) {
  RuntimeConfig runtime;
  EXPECT_EQ(ThreadsPerRank(runtime, 1, 11), 11);
  EXPECT_EQ(ThreadsPerRank(runtime, 2, 11), 5);
  EXPECT_EQ(ThreadsPerRank(runtime, int64_t{1} << 40, 11), 1);
  EXPECT_EQ(ThreadsPerRank(runtime, 1, 0), 1);  // The system does not tell.
  runtime.threads_per_rank = 7;
  EXPECT_EQ(ThreadsPerRank(runtime, 1, 11), 7);
  EXPECT_EQ(ThreadsPerRank(runtime, 1000, 11), 7);
}

}  // namespace
}  // namespace shale::testing
