// Jobs of several "processes", which are threads of the test.
#include "engine/cluster/launch/joined_processes.h"

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/cluster/launch/free_port.h"

namespace shale::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Joins the processes of a job, and calls `work` with each in a thread of its own.
void InEachProcess(int processes, int64_t ranks, const std::function<void(JoinedProcesses& joined)>& work) {
  const std::string port = absl::StrCat(FreePort());
  std::vector<std::thread> threads;
  for (int process = 0; process < processes; ++process) {
    threads.emplace_back([&, process] {
      const Variables variables = {{"RANK", absl::StrCat(process)},
                                   {"WORLD_SIZE", absl::StrCat(processes)},
                                   {"MASTER_ADDR", "127.0.0.1"},
                                   {"MASTER_PORT", port}};
      const absl::StatusOr<std::unique_ptr<JoinedProcesses>> joined =
          JoinedProcesses::Join(variables, ranks, {{"build", "1"}});
      ASSERT_TRUE(joined.ok()) << joined.status();
      work(**joined);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(JoinedProcessesTest, EveryRankIsHeldByOneProcessInOrderAndEvenly) {
  for (int64_t ranks = 1; ranks < 20; ++ranks) {
    for (int processes = 1; processes <= ranks; ++processes) {
      int next = 0;
      for (int process = 0; process < processes; ++process) {
        const std::vector<int> mine = RanksOfProcess(ranks, process, processes);
        EXPECT_GE(std::ssize(mine), ranks / processes);
        EXPECT_LE(std::ssize(mine), (ranks + processes - 1) / processes);
        for (const int rank : mine) EXPECT_EQ(rank, next++);
      }
      EXPECT_EQ(next, ranks);
    }
  }
}

TEST(JoinedProcessesTest, AProcessThatNobodyLaunchedIsAlone) {
  const absl::StatusOr<std::unique_ptr<JoinedProcesses>> joined = JoinedProcesses::Join({}, 3, {});
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_TRUE((*joined)->alone());
  EXPECT_TRUE((*joined)->leads());
  EXPECT_THAT((*joined)->ranks(), ElementsAre(0, 1, 2));
  EXPECT_EQ((*joined)->ranks_on_host(), 3);
  EXPECT_EQ(*(*joined)->InProcessZero([] { return std::string("done"); }), "done");
  EXPECT_TRUE((*joined)->CheckShared("/nowhere/file").ok());
  EXPECT_EQ((*joined)->Fail(absl::DataLossError("mine")), absl::DataLossError("mine"));
  EXPECT_FALSE((*joined)->failed_elsewhere());
  EXPECT_TRUE((*joined)->Leave().ok());
}

TEST(JoinedProcessesTest, MoreProcessesThanRanksAreRefused) {
  const Variables variables = {{"RANK", "0"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "1"}};
  const absl::Status status = JoinedProcesses::Join(variables, 2, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("started 3 processes, and the job has 2 ranks"));
}

TEST(JoinedProcessesTest, ItsDeadlinesAreThoseOfTheEnvironment) {
  const auto refusal = [](const std::string& name, const std::string& seconds) {
    Variables variables = {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}};
    variables["MASTER_PORT"] = absl::StrCat(FreePort());
    variables[name] = seconds;
    return std::string(JoinedProcesses::Join(variables, 2, {}).status().message());
  };
  for (const char* name : {"SHALE_HEARTBEAT_SECONDS", "SHALE_JOIN_SECONDS"}) {
    for (const char* wrong : {"", "soon", "0", "-5", "1e6", "nan"}) {
      EXPECT_EQ(refusal(name, wrong),
                absl::StrCat("wanted seconds from 1 to 86400 in ", name, ", found \"", wrong, "\""));
    }
  }
  EXPECT_THAT(refusal("SHALE_JOIN_SECONDS", "1"), HasSubstr("process 1 of 2 did not join the job within 1 s"));
}

TEST(JoinedProcessesTest, ProcessZeroWorksForAll) {
  InEachProcess(3, 5, [](JoinedProcesses& joined) {
    EXPECT_EQ(joined.ranks_on_host(), 5);
    EXPECT_EQ(joined.ranks_here(), 5);
    EXPECT_EQ(joined.ranks_before_here(), joined.ranks()[0]);
    EXPECT_EQ(joined.address(), "127.0.0.1");
    const std::string mine = absl::StrCat("process ", joined.place().process);
    EXPECT_EQ(*joined.InProcessZero([&] { return mine; }), "process 0");
    const absl::Status failed =
        joined.InProcessZero([&]() -> absl::StatusOr<std::string> { return absl::DataLossError(mine); }).status();
    EXPECT_EQ(failed.message(), "process 0: process 0");
    EXPECT_TRUE(IsAgreed(failed));
    EXPECT_TRUE(joined.CheckShared(absl::StrCat(::testing::TempDir(), "/probe")).ok());
    EXPECT_EQ(joined.CheckShared("/nowhere/probe").code(), absl::StatusCode::kNotFound);
    // An error that all have ends no job, so each says the same.
    EXPECT_EQ(joined.Fail(failed), failed);
    EXPECT_FALSE(joined.failed_elsewhere());
  });
}

TEST(JoinedProcessesTest, AnErrorOfOneProcessIsWhyAllFail) {
  InEachProcess(3, 3, [](JoinedProcesses& joined) {
    absl::Status status = joined.place().process == 1 ? absl::DataLossError("a broken disk") : absl::OkStatus();
    if (status.ok()) {
      const absl::Status peers = joined.control().Barrier(ControlChannel::kSteps);
      EXPECT_FALSE(peers.ok());
      status = joined.Fail(absl::UnavailableError("lost rank 1"));
      EXPECT_THAT(std::string(status.message()), HasSubstr("process 1 "));
      EXPECT_THAT(std::string(status.message()), HasSubstr("a broken disk"));
      EXPECT_TRUE(joined.failed_elsewhere());
    } else {
      EXPECT_EQ(joined.Fail(status), status);
      EXPECT_FALSE(joined.failed_elsewhere());
    }
  });
}

}  // namespace
}  // namespace shale::testing
