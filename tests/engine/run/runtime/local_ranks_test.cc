// Tests that the machine may refuse memory or threads to ranks. The result is an error that says so, and the program
// does not end.
#include "engine/run/runtime/local_ranks.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <fstream>
#include <functional>
#include <new>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "engine/run/backends/cpu_backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/team.h"
#include "tests/sanitizers.h"

namespace shale::testing {
namespace {

using ::testing::HasSubstr;

TEST(RankThreadsTest, EveryRankWorksInEveryRoundAndCausesComeBeforeEchoes) {
  const auto threads = RankThreads::Create(3);
  ASSERT_TRUE(threads.ok()) << threads.status();
  std::atomic<int> ranks = 0;
  for (int round = 0; round < 3; ++round) {
    EXPECT_TRUE((*threads)->Run([&](int rank) { return ranks += rank, absl::OkStatus(); }).ok());
  }
  EXPECT_EQ(ranks, 9);
  const absl::Status status =
      (*threads)->Run([](int rank) { return rank == 2 ? absl::DataLossError("cause") : absl::AbortedError("echo"); });
  EXPECT_EQ(status, absl::DataLossError("cause"));
}

// Returns what `start` returns where there is address space for the stacks of some threads alone.
absl::Status WithRoomForSomeStacks(const std::function<absl::Status()>& start) {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  EXPECT_GT(pages, 0);
  rlimit before;
  EXPECT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  rlimit now = before;
  now.rlim_cur = pages * sysconf(_SC_PAGESIZE) + (rlim_t{256} << 20);
  EXPECT_EQ(setrlimit(RLIMIT_AS, &now), 0);
  const absl::Status status = start();
  EXPECT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  return status;
}

// Regression: the program ended when std::thread threw while other threads were running.
TEST(RankThreadsTest, ThreadsThatTheSystemRefusesAreAnError) {
  if (HasSanitizer()) GTEST_SKIP() << "a sanitizer may map memory at any time, which the limit would prevent";
  const absl::Status status = WithRoomForSomeStacks([] { return RankThreads::Create(5000).status(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot start a thread for rank "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(" of 5000: "));
}

TEST(Team, ThreadsThatTheSystemRefusesAreAnError) {
  if (HasSanitizer()) GTEST_SKIP() << "a sanitizer may map memory at any time, which the limit would prevent";
  cpu::Team team(4096);
  const absl::Status status = WithRoomForSomeStacks([&] { return team.Start(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(" of the 4096 compute threads of a rank: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr("lower runtime.threads_per_rank"));
  int calls = 0;
  team.Run(3, [&](int i) { EXPECT_EQ(i, calls++); });  // The calling thread does the work.
  EXPECT_EQ(calls, 3);
}

// Peers wait in a collective for a rank that has run out of memory.
TEST(LocalRanksTest, ARankWithoutMemoryIsAnErrorAndFreesItsPeers) {
  const auto ranks = LocalRanks::Create(*CreateCpuBackend(), {.mesh = {.shard = 3}}, 4096);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const absl::Status status = (*ranks)->ForEach([&](int rank) -> absl::Status {
    if (rank == 1) throw std::bad_alloc();
    RankRuntime& runtime = (**ranks)[rank];
    const Tensor data = Tensor::Contiguous(DType::kFloat32, {16}, runtime.arena().base());
    Stream& stream = runtime.stream(StreamId::kReduce);
    const absl::Status enqueued = runtime.communicator(MeshAxis::kAll, StreamId::kReduce)->AllReduceSum(data, stream);
    return enqueued.ok() ? stream.Synchronize() : enqueued;
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot allocate memory"));
}

// On a mesh of two rows and three columns, each axis sums over its own ranks. The process may hold some rows only.
TEST(LocalRanksTest, CollectivesRunAlongTheAxesOfTheMesh) {
  const Mesh mesh{.replicate = 2, .shard = 3};
  const auto ranks = LocalRanks::Create(*CreateCpuBackend(), {.mesh = mesh}, 4096);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  ASSERT_EQ((*ranks)->size(), 6);
  const absl::Status status = (*ranks)->ForEach([&](int local) -> absl::Status {
    RankRuntime& runtime = (**ranks)[local];
    auto* const value = reinterpret_cast<float*>(runtime.arena().base());
    for (const auto& [axis, expected] : {std::pair(MeshAxis::kShard, local < 3 ? 6 : 15),
                                         {MeshAxis::kReplicate, 2 * (local % 3) + 5},
                                         {MeshAxis::kAll, 21}}) {
      const float mine = static_cast<float>(local + 1);
      SHALE_RETURN_IF_ERROR(runtime.Write(runtime.arena().base(), &mine, sizeof(mine)));
      Stream& stream = runtime.stream(StreamId::kReduce);
      const Tensor data = Tensor::Contiguous(DType::kFloat32, {1}, runtime.arena().base());
      SHALE_RETURN_IF_ERROR(runtime.communicator(axis, StreamId::kReduce)->AllReduceSum(data, stream));
      SHALE_RETURN_IF_ERROR(stream.Synchronize());
      EXPECT_EQ(*value, expected) << ToString(axis) << ", rank " << local;
    }
    EXPECT_EQ(runtime.shard(), local % 3);
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST(LocalRanksTest, AGroupThatSpansProcessesIsRefusedByABackendOfOneProcess) {
  const Mesh mesh{.replicate = 2, .shard = 2};
  const auto ranks = LocalRanks::Create(*CreateCpuBackend(), {.mesh = mesh, .ranks = {2, 3}}, 4096);
  EXPECT_EQ(ranks.status().code(), absl::StatusCode::kUnimplemented) << ranks.status();
  EXPECT_THAT(std::string(ranks.status().message()),
              HasSubstr("group replicate of rank 0, reduce has 2 ranks, 1 of them in this process"));
}

}  // namespace
}  // namespace shale::testing
