#include "sharding/comm/control_plane.h"

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/sharding/comm/thread_processes.h"

namespace shale::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr ControlChannel kSteps = ControlChannel::kSteps, kCheckpoints = ControlChannel::kCheckpoints;

void InEach(ThreadProcesses& processes, const std::function<void(ControlPlane&)>& work) {
  std::vector<std::thread> threads;
  for (int process = 0; process < processes.size(); ++process) {
    threads.emplace_back([&, process] { work(processes[process]); });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(OneProcessTest, AnswersAtOnce) {
  ControlPlane& control = OneProcess();
  EXPECT_EQ(control.process(), 0);
  EXPECT_EQ(control.processes(), 1);
  EXPECT_THAT(control.Gather(kSteps, "a").value(), ElementsAre("a"));
  EXPECT_EQ(control.Broadcast(kCheckpoints, "b").value(), "b");
  EXPECT_TRUE(control.Barrier(kSteps).ok());
  EXPECT_EQ(AgreeOnStatus(control, kSteps, absl::DataLossError("x y")), absl::DataLossError("x y"));
  EXPECT_TRUE(CheckSameEverywhere(control, kSteps, "the job", "text").ok());
}

TEST(ControlPlaneTest, ChannelsMatchCallsInOrder) {
  ThreadProcesses processes(3);
  InEach(processes, [](ControlPlane& control) {
    std::thread saver([&] {
      for (int i = 0; i < 100; ++i) {
        EXPECT_EQ(control.Broadcast(kCheckpoints, absl::StrCat(control.process(), "/", i)).value(),
                  absl::StrCat("0/", i));
      }
    });
    for (int i = 0; i < 100; ++i) {
      EXPECT_THAT(control.Gather(kSteps, absl::StrCat(control.process(), ".", i)).value(),
                  ElementsAre(absl::StrCat("0.", i), absl::StrCat("1.", i), absl::StrCat("2.", i)));
      EXPECT_TRUE(control.Barrier(kSteps).ok());
    }
    saver.join();
  });
}

TEST(ControlPlaneTest, AnErrorOfOneProcessIsTheErrorOfAll) {
  ThreadProcesses processes(3);
  InEach(processes, [](ControlPlane& control) {
    EXPECT_TRUE(AgreeOnStatus(control, kSteps, absl::OkStatus()).ok());
    const absl::Status mine =
        control.process() == 0 ? absl::OkStatus() : absl::DataLossError(absl::StrCat("shard ", control.process()));
    const absl::Status agreed = AgreeOnStatus(control, kSteps, mine);
    EXPECT_EQ(agreed, Agreed(absl::DataLossError("process 1: shard 1")));
    // An error went through three agreements and said "process 0: process 0: process 0: ".
    EXPECT_EQ(AgreeOnStatus(control, kSteps, agreed), agreed);
  });
}

TEST(ControlPlaneTest, ADifferenceIsNamed) {
  ThreadProcesses processes(3);
  InEach(processes, [](ControlPlane& control) {
    EXPECT_TRUE(CheckSameEverywhere(control, kSteps, "the data", "same").ok());
    const absl::Status status = CheckSameEverywhere(control, kSteps, "the data", control.process() == 2 ? "b" : "a");
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("processes disagree about the data: process 0 has \"a\", process 2 has \"b\""));
  });
}

TEST(ControlPlaneTest, AProcessThatEndsFreesTheOthers) {
  ThreadProcesses processes(2);
  std::thread waiting([&] { EXPECT_EQ(processes[0].Barrier(kSteps).code(), absl::StatusCode::kAborted); });
  processes.End();
  waiting.join();
}

}  // namespace
}  // namespace shale::testing
