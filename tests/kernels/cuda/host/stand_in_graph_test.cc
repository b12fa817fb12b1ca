// Tests captures and graphs of the stand-in for the CUDA runtime: what they do, and the misuse that is found.
#include <cstring>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/portable.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"

namespace shale::cuda_on_host {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

SHALE_KERNEL AddKernel(cuda::Global<int> at, int value) { at.Store(0, at.Load(0) + value); }

class StandInGraphTest : public ::testing::Test {
 protected:
  // Adds `value` to the integer in device memory.
  absl::Status Add(int value, cuda::StreamHandle stream) {
    return cuda::Launch("Add", AddKernel, {}, stream, cuda::Global<int>(device_, 1, "at"), value);
  }
  // Captures a graph that copies the integer in and adds `value` on the first stream, and copies it out on the second
  // one.
  cuda::GraphHandle CaptureAdd(int value) {
    EXPECT_TRUE(runtime_.BeginCapture(first_).ok());
    EXPECT_TRUE(runtime_.CopyAsync(device_, pinned_, 4, first_).ok());
    in_ = *runtime_.LastCaptured(first_);
    EXPECT_TRUE(Add(value, first_).ok());
    EXPECT_TRUE(Order(first_, second_).ok());
    EXPECT_TRUE(runtime_.CopyAsync(pinned_, device_, 4, second_).ok());
    EXPECT_TRUE(Order(second_, first_).ok());
    return *runtime_.EndCapture(first_);
  }
  absl::Status Order(cuda::StreamHandle before, cuda::StreamHandle after) {
    absl::Status status = runtime_.RecordEvent(event_, before);
    status.Update(runtime_.WaitEvent(after, event_));
    return status;
  }
  void ExpectMisuse(const absl::Status& status, const char* what) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    EXPECT_THAT(runtime_.misuse(), SizeIs(++misuses_));
  }

  StandInRuntime runtime_{{.devices = 2}};
  cuda::StreamHandle first_ = *runtime_.CreateStream(CudaStreamPriority::kNormal);
  cuda::StreamHandle second_ = *runtime_.CreateStream(CudaStreamPriority::kNormal);
  cuda::EventHandle event_ = *runtime_.CreateEvent(CudaEventKind::kOrder);
  int* device_ = static_cast<int*>(*runtime_.Malloc(64));
  int* pinned_ = static_cast<int*>(*runtime_.MallocHost(64));
  cuda::NodeHandle in_ = nullptr;
  size_t misuses_ = 0;
};

TEST_F(StandInGraphTest, WhatIsCapturedRunsAtEachLaunchAndNotBefore) {
  pinned_[0] = 5;
  const cuda::GraphHandle graph = CaptureAdd(3);
  ASSERT_TRUE(runtime_.SynchronizeStream(first_).ok());
  ASSERT_TRUE(runtime_.SynchronizeStream(second_).ok());
  EXPECT_EQ(pinned_[0], 5);
  for (int launch = 0; launch < 50; ++launch) ASSERT_TRUE(runtime_.LaunchGraph(graph, first_).ok());
  ASSERT_TRUE(runtime_.SynchronizeStream(first_).ok());
  EXPECT_EQ(pinned_[0], 155);
  EXPECT_EQ(runtime_.graph_launches(), 50);
  // A launch on another stream starts after the launches before it.
  ASSERT_TRUE(runtime_.LaunchGraph(graph, first_).ok());
  ASSERT_TRUE(runtime_.LaunchGraph(graph, second_).ok());
  ASSERT_TRUE(runtime_.SynchronizeStream(second_).ok());
  EXPECT_EQ(pinned_[0], 161);
  EXPECT_TRUE(runtime_.DestroyGraph(graph).ok());
  EXPECT_THAT(runtime_.misuse(), IsEmpty());
}

TEST_F(StandInGraphTest, WorkKeepsThePriorityOfItsStream) {
  for (const bool first_is_urgent : {true, false}) {
    const auto urgent = CudaStreamPriority::kHighest, normal = CudaStreamPriority::kNormal;
    first_ = *runtime_.CreateStream(first_is_urgent ? urgent : normal);
    second_ = *runtime_.CreateStream(first_is_urgent ? normal : urgent);
    const cuda::GraphHandle graph = CaptureAdd(3);
    const std::vector<CudaStreamPriority> both = runtime_.PrioritiesOf(graph);
    EXPECT_EQ(both, first_is_urgent ? std::vector({urgent, normal}) : std::vector({normal, urgent}));
  }
}

TEST_F(StandInGraphTest, ACopyMayGetOtherEndsForLaterLaunches) {
  const cuda::GraphHandle graph = CaptureAdd(1);
  pinned_[0] = 0;
  pinned_[4] = 40;
  ASSERT_TRUE(runtime_.LaunchGraph(graph, first_).ok());
  ASSERT_TRUE(runtime_.SetGraphCopy(graph, in_, device_, pinned_ + 4, 4).ok());
  ASSERT_TRUE(runtime_.SynchronizeStream(first_).ok());
  EXPECT_EQ(pinned_[0], 1);
  ASSERT_TRUE(runtime_.LaunchGraph(graph, first_).ok());
  ASSERT_TRUE(runtime_.SynchronizeStream(first_).ok());
  EXPECT_EQ(pinned_[0], 41);
  ExpectMisuse(runtime_.SetGraphCopy(graph, in_, device_, device_ + 4, 4), "another kind of memory");
  ExpectMisuse(runtime_.SetGraphCopy(graph, &in_, device_, pinned_, 4), "not a copy of the graph");
  ExpectMisuse(runtime_.SetGraphCopy(graph, in_, device_, pinned_ + 15, 8), "of which only 4");
}

TEST_F(StandInGraphTest, AFailedKernelIsThatOfALaunch) {
  const cuda::GraphHandle graph = CaptureAdd(3);
  runtime_.FailKernel(2);
  ASSERT_TRUE(runtime_.LaunchGraph(graph, first_).ok());
  ASSERT_TRUE(runtime_.SynchronizeStream(first_).ok());
  ASSERT_TRUE(runtime_.LaunchGraph(graph, first_).ok());
  EXPECT_EQ(runtime_.SynchronizeStream(first_).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(runtime_.LaunchGraph(graph, first_).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(runtime_.DestroyGraph(graph).code(), absl::StatusCode::kInternal);
}

TEST_F(StandInGraphTest, StreamsMustBeJoined) {
  ASSERT_TRUE(runtime_.BeginCapture(first_).ok());
  ASSERT_TRUE(Order(first_, second_).ok());
  ASSERT_TRUE(Add(1, second_).ok());
  ASSERT_TRUE(Order(second_, first_).ok());
  ASSERT_TRUE(Add(1, second_).ok());
  ExpectMisuse(runtime_.EndCapture(first_).status(), "was not waited for");
  // The streams are as they were before the capture.
  ASSERT_TRUE(Add(1, second_).ok());
  EXPECT_TRUE(runtime_.SynchronizeStream(second_).ok());
}

TEST_F(StandInGraphTest, AnEventOfElsewhereBreaksACapture) {
  ASSERT_TRUE(runtime_.RecordEvent(event_, second_).ok());
  ASSERT_TRUE(runtime_.BeginCapture(first_).ok());
  ExpectMisuse(runtime_.WaitEvent(first_, event_), "not recorded in the capture");
  EXPECT_EQ(runtime_.EndCapture(first_).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(runtime_.SynchronizeStream(first_).ok());
}

TEST_F(StandInGraphTest, ACapturedEventHappensNowhereElse) {
  ASSERT_TRUE(runtime_.BeginCapture(first_).ok());
  ASSERT_TRUE(runtime_.RecordEvent(event_, first_).ok());
  ASSERT_TRUE(runtime_.EndCapture(first_).ok());
  ExpectMisuse(runtime_.WaitEvent(second_, event_), "a capture that has ended");
  ExpectMisuse(runtime_.SynchronizeEvent(event_), "never happens");
  ExpectMisuse(runtime_.EventReached(event_).status(), "never happens");
  ASSERT_TRUE(runtime_.RecordEvent(event_, first_).ok());
  EXPECT_TRUE(runtime_.SynchronizeEvent(event_).ok());
}

TEST_F(StandInGraphTest, AThreadThatCapturesNeitherWaitsNorAllocates) {
  const auto broken = [&](auto&& call) {
    ASSERT_TRUE(runtime_.BeginCapture(first_).ok());
    ExpectMisuse(call(), "while the thread captures");
    EXPECT_EQ(runtime_.EndCapture(first_).status().code(), absl::StatusCode::kInvalidArgument);
  };
  broken([&] { return runtime_.SynchronizeStream(first_); });
  broken([&] { return runtime_.SynchronizeStream(second_); });
  broken([&] { return runtime_.Malloc(8).status(); });
  broken([&] { return runtime_.FreeHost(pinned_); });
  // Other threads may.
  ASSERT_TRUE(runtime_.BeginCapture(first_).ok());
  std::thread([&] { EXPECT_TRUE(runtime_.SynchronizeStream(second_).ok()); }).join();
  EXPECT_TRUE(runtime_.EndCapture(first_).ok());
}

TEST_F(StandInGraphTest, ACaptureEndsWhereItBegan) {
  ExpectMisuse(runtime_.EndCapture(first_).status(), "began no capture");
  ASSERT_TRUE(runtime_.BeginCapture(first_).ok());
  ExpectMisuse(runtime_.BeginCapture(first_), "is being captured");
  ASSERT_TRUE(Order(first_, second_).ok());
  ExpectMisuse(runtime_.EndCapture(second_).status(), "began no capture");
  ExpectMisuse(runtime_.DestroyStream(second_), "is being captured");
  std::thread([&] { ExpectMisuse(runtime_.EndCapture(first_).status(), "another thread"); }).join();
  EXPECT_TRUE(runtime_.EndCapture(first_).ok());
}

TEST_F(StandInGraphTest, AGraphIsLaunchedWhileItLives) {
  const cuda::GraphHandle graph = CaptureAdd(1);
  ExpectMisuse(runtime_.Free(device_), "used by 3 pieces of work of graphs");
  ExpectMisuse(runtime_.FreeHost(pinned_), "used by 2 pieces of work of graphs");
  ASSERT_TRUE(runtime_.SetDevice(1).ok());
  const cuda::StreamHandle elsewhere = *runtime_.CreateStream(CudaStreamPriority::kNormal);
  ExpectMisuse(runtime_.LaunchGraph(graph, elsewhere), "different devices");
  ASSERT_TRUE(runtime_.SetDevice(0).ok());
  ASSERT_TRUE(runtime_.LaunchGraph(graph, first_).ok());
  EXPECT_THAT(std::string(runtime_.CheckAllReleased().message()), HasSubstr("1 graphs"));
  EXPECT_TRUE(runtime_.DestroyGraph(graph).ok());
  ASSERT_TRUE(runtime_.SynchronizeStream(first_).ok());
  ExpectMisuse(runtime_.LaunchGraph(graph, first_), "was destroyed");
  ExpectMisuse(runtime_.DestroyGraph(graph), "was destroyed");
  EXPECT_TRUE(runtime_.Free(device_).ok());
}

}  // namespace
}  // namespace shale::cuda_on_host
