// Tests what the stand-in for the CUDA runtime finds, with calls that break each rule.
#include "tests/kernels/cuda/host/stand_in_runtime.h"

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/portable.h"
#include "tests/kernels/cuda/host/host_view.h"

namespace shale::cuda_on_host {
namespace {

using ::testing::HasSubstr;
using ::testing::SizeIs;

SHALE_KERNEL Increment(cuda::Global<int> at, int64_t size) {
  const int64_t i = static_cast<int64_t>(cuda::blockIdx.x) * cuda::blockDim.x + cuda::threadIdx.x;
  if (i < size) at.Store(i, at.Load(i) + 1);
}

SHALE_KERNEL WriteBeyond(cuda::Global<int> at) { at.Store(4, 1); }

class StandInRuntimeTest : public ::testing::Test {
 protected:
  ~StandInRuntimeTest() override {
    if (!blocked_) return;
    Unblock();
  }
  absl::Status Increment(int* memory, int64_t size, cuda::StreamHandle stream) {
    return cuda::Launch("Increment", cuda_on_host::Increment, {.grid = cuda::dim3(2), .block = cuda::dim3(32)}, stream,
                        cuda::Global<int>(memory, size, "at"), size);
  }
  // Blocks the stream until Unblock().
  void Block(cuda::StreamHandle stream) {
    blocked_ = true;
    ASSERT_TRUE(runtime_
                    .LaunchHostFunction(
                        [](void* blocked) {
                          while (*static_cast<std::atomic<bool>*>(blocked)) std::this_thread::yield();
                        },
                        &blocked_, stream)
                    .ok());
  }
  void Unblock() { blocked_ = false; }
  void ExpectMisuse(const absl::Status& status, const char* what) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    EXPECT_THAT(runtime_.misuse(), SizeIs(++misuses_));
  }

  std::atomic<bool> blocked_ = false;
  StandInRuntime runtime_;
  cuda::StreamHandle stream_ = *runtime_.CreateStream(CudaStreamPriority::kNormal);
  std::byte* device_ = static_cast<std::byte*>(*runtime_.Malloc(256));
  std::byte* pinned_ = static_cast<std::byte*>(*runtime_.MallocHost(256));
  size_t misuses_ = 0;
};

TEST_F(StandInRuntimeTest, ACopyMustLieInOneAllocation) {
  EXPECT_TRUE(runtime_.CopyAsync(device_, pinned_, 256, stream_).ok());
  ExpectMisuse(runtime_.CopyAsync(device_ + 1, pinned_, 256, stream_), "of which only 255 lie in the allocation");
  ExpectMisuse(runtime_.CopyAsync(device_ - 1, pinned_, 16, stream_), "begin before an allocation");
  ExpectMisuse(runtime_.CopyAsync(device_, pinned_ + 200, 57, stream_), "of which only 56");
  ExpectMisuse(runtime_.SetBytesAsync(device_ + 250, 0, 7, stream_), "of which only 6");
  ExpectMisuse(runtime_.CopyAsync(device_, device_ + 8, 9, stream_), "overlap");
}

TEST_F(StandInRuntimeTest, HostMemoryMustBePinned) {
  char pageable[16] = {};
  ExpectMisuse(runtime_.CopyAsync(device_, pageable, 16, stream_), "is not pinned");
  ExpectMisuse(runtime_.CopyAsync(pageable, device_, 16, stream_), "is not pinned");
  StandInRuntime lenient({.allow_pageable = true});
  cuda::StreamHandle stream = *lenient.CreateStream(CudaStreamPriority::kNormal);
  EXPECT_TRUE(lenient.CopyAsync(*lenient.Malloc(16), pageable, 16, stream).ok());
}

TEST_F(StandInRuntimeTest, MemoryIsFreedOnceAndByItsAddress) {
  ExpectMisuse(runtime_.Free(device_ + 8), "is not the address of an allocation");
  ExpectMisuse(runtime_.Free(pinned_), "is not the address");
  EXPECT_TRUE(runtime_.Free(device_).ok());
  ExpectMisuse(runtime_.Free(device_), "was freed before");
  ExpectMisuse(runtime_.CopyAsync(device_, pinned_, 16, stream_), "device memory was freed");
  EXPECT_TRUE(runtime_.Free(nullptr).ok());
}

TEST_F(StandInRuntimeTest, MemoryIsNotFreedUnderACopy) {
  Block(stream_);
  ASSERT_TRUE(runtime_.CopyAsync(device_, pinned_, 16, stream_).ok());
  ExpectMisuse(runtime_.Free(device_), "in use by 1 pieces of work");
  ExpectMisuse(runtime_.FreeHost(pinned_), "in use by 1 pieces of work");
  Unblock();
  ASSERT_TRUE(runtime_.SynchronizeStream(stream_).ok());
  EXPECT_TRUE(runtime_.Free(device_).ok());
  EXPECT_TRUE(runtime_.FreeHost(pinned_).ok());
}

TEST_F(StandInRuntimeTest, MemoryIsNotFreedUnderAKernel) {
  Block(stream_);
  ASSERT_TRUE(Increment(reinterpret_cast<int*>(device_), 64, stream_).ok());
  ExpectMisuse(runtime_.Free(device_), "in use by 1 pieces of work");
  Unblock();
  ASSERT_TRUE(runtime_.SynchronizeStream(stream_).ok());
  EXPECT_TRUE(runtime_.Free(device_).ok());
}

TEST_F(StandInRuntimeTest, AKernelRunsAtItsTurnWithTheArgumentsOfItsLaunch) {
  std::memset(pinned_, 0, 256);
  Block(stream_);
  ASSERT_TRUE(runtime_.CopyAsync(device_, pinned_, 256, stream_).ok());
  for (int64_t size : {64, 32, 1}) ASSERT_TRUE(Increment(reinterpret_cast<int*>(device_), size, stream_).ok());
  ASSERT_TRUE(runtime_.CopyAsync(pinned_, device_, 256, stream_).ok());
  Unblock();
  ASSERT_TRUE(runtime_.SynchronizeStream(stream_).ok());
  const int* found = reinterpret_cast<const int*>(pinned_);
  EXPECT_EQ(found[0], 3);
  EXPECT_EQ(found[1], 2);
  EXPECT_EQ(found[63], 1);
}

TEST_F(StandInRuntimeTest, WhatAKernelDoesWrongShowsLate) {
  Block(stream_);
  ASSERT_TRUE(cuda::Launch("WriteBeyond", WriteBeyond, {.grid = cuda::dim3(1), .block = cuda::dim3(1)}, stream_,
                           cuda::Global<int>(reinterpret_cast<int*>(device_), 4, "at"))
                  .ok());
  Unblock();
  const absl::Status error = runtime_.SynchronizeStream(stream_);
  EXPECT_THAT(std::string(error.message()), HasSubstr("WriteBeyond"));
  EXPECT_EQ(runtime_.Malloc(1).status().code(), error.code());
  EXPECT_EQ(runtime_.TakeLastError().code(), error.code());
  EXPECT_EQ(runtime_.TakeLastError().code(), error.code());
}

TEST_F(StandInRuntimeTest, AfterAFailureNothingRunsButNobodyWaitsForEver) {
  cuda::StreamHandle other = *runtime_.CreateStream(CudaStreamPriority::kNormal);
  cuda::EventHandle event = *runtime_.CreateEvent(CudaEventKind::kOrder);
  std::memset(pinned_, 1, 256);
  Block(stream_);
  runtime_.FailKernel(1);
  ASSERT_TRUE(Increment(reinterpret_cast<int*>(device_), 64, stream_).ok());
  ASSERT_TRUE(runtime_.CopyAsync(pinned_, device_, 256, stream_).ok());
  ASSERT_TRUE(runtime_.RecordEvent(event, stream_).ok());
  ASSERT_TRUE(runtime_.WaitEvent(other, event).ok());
  Unblock();
  EXPECT_EQ(runtime_.SynchronizeStream(other).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(runtime_.SynchronizeStream(stream_).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(pinned_[0], std::byte{1});
}

TEST_F(StandInRuntimeTest, ADestroyedStreamOrEventIsNotUsed) {
  cuda::StreamHandle stream = *runtime_.CreateStream(CudaStreamPriority::kNormal);
  cuda::EventHandle event = *runtime_.CreateEvent(CudaEventKind::kOrder);
  EXPECT_TRUE(runtime_.DestroyStream(stream).ok());
  EXPECT_TRUE(runtime_.DestroyEvent(event).ok());
  ExpectMisuse(runtime_.SynchronizeStream(stream), "a stream that was destroyed");
  ExpectMisuse(runtime_.DestroyStream(stream), "a stream that was destroyed");
  ExpectMisuse(Increment(reinterpret_cast<int*>(device_), 4, stream), "a stream that was destroyed");
  ExpectMisuse(runtime_.WaitEvent(stream_, event), "an event that was destroyed");
  ExpectMisuse(runtime_.DestroyEvent(event), "an event that was destroyed");
  ExpectMisuse(runtime_.CopyAsync(device_, pinned_, 4, nullptr), "the default stream");
}

TEST_F(StandInRuntimeTest, AKernelWantsItsDeviceToBeCurrent) {
  StandInRuntime two({.devices = 2});
  int* memory = static_cast<int*>(*two.Malloc(256));
  cuda::StreamHandle stream = *two.CreateStream(CudaStreamPriority::kNormal);
  ASSERT_TRUE(two.SetDevice(1).ok());
  EXPECT_THAT(std::string(Increment(memory, 64, stream).message()),
              HasSubstr("a stream of device 0 while 1 is current"));
  EXPECT_TRUE(two.CopyAsync(memory, pinned_, 4, stream).ok());
  ASSERT_TRUE(two.SetDevice(0).ok());
  EXPECT_TRUE(Increment(memory, 64, stream).ok());
  EXPECT_TRUE(two.SynchronizeStream(stream).ok());
}

TEST_F(StandInRuntimeTest, OnlyTimedEventsThatWereReachedTellATime) {
  cuda::EventHandle order = *runtime_.CreateEvent(CudaEventKind::kOrder);
  cuda::EventHandle begin = *runtime_.CreateEvent(CudaEventKind::kTime);
  cuda::EventHandle end = *runtime_.CreateEvent(CudaEventKind::kTime);
  ExpectMisuse(runtime_.ElapsedMilliseconds(order, begin).status(), "records no time");
  ExpectMisuse(runtime_.ElapsedMilliseconds(begin, end).status(), "never recorded");
  ASSERT_TRUE(runtime_.RecordEvent(begin, stream_).ok());
  Block(stream_);
  ASSERT_TRUE(runtime_.RecordEvent(end, stream_).ok());
  ASSERT_TRUE(runtime_.SynchronizeEvent(begin).ok());
  EXPECT_EQ(*runtime_.EventReached(end), false);
  ExpectMisuse(runtime_.ElapsedMilliseconds(begin, end).status(), "has not been reached");
  Unblock();
  ASSERT_TRUE(runtime_.SynchronizeEvent(end).ok());
  EXPECT_EQ(*runtime_.EventReached(end), true);
  EXPECT_GT(*runtime_.ElapsedMilliseconds(begin, end), 0);
}

TEST_F(StandInRuntimeTest, WhatIsLeftIsCounted) {
  EXPECT_THAT(std::string(runtime_.CheckAllReleased().message()), HasSubstr("2 allocations, 1 streams, 0 events"));
  EXPECT_TRUE(runtime_.Free(device_).ok());
  EXPECT_TRUE(runtime_.FreeHost(pinned_).ok());
  EXPECT_TRUE(runtime_.DestroyStream(stream_).ok());
  EXPECT_TRUE(runtime_.CheckAllReleased().ok());
}

TEST_F(StandInRuntimeTest, MemoryOfADeviceIsLimited) {
  StandInRuntime small({.devices = 2, .memory_bytes = 1000});
  void* most = *small.Malloc(900);
  EXPECT_EQ(small.Malloc(101).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(*small.FreeBytes(), 100);
  ASSERT_TRUE(small.SetDevice(1).ok());
  EXPECT_TRUE(small.Malloc(1000).ok());
  EXPECT_EQ(*small.FreeBytes(), 0);
  EXPECT_TRUE(small.Free(most).ok());
  ASSERT_TRUE(small.SetDevice(0).ok());
  EXPECT_EQ(*small.FreeBytes(), 1000);
}

TEST_F(StandInRuntimeTest, TheHostViewHasTheSameBytesAndOtherAddressesStayWhatTheyAre) {
  ASSERT_TRUE(runtime_.SetBytesAsync(device_ + 3, 7, 2, stream_).ok());
  ASSERT_TRUE(runtime_.SynchronizeStream(stream_).ok());
  EXPECT_EQ(HostViewOf(device_)[3], std::byte{7});
  EXPECT_EQ(HostViewOf(device_ + 4)[0], std::byte{7});
  EXPECT_EQ(HostViewOf(device_)[5], std::byte{0});
  EXPECT_EQ(HostViewOf(pinned_), pinned_);
  int local = 0;
  EXPECT_EQ(HostViewOf(&local), &local);
  EXPECT_EQ(HostViewOf(static_cast<int*>(nullptr)), nullptr);
}

TEST_F(StandInRuntimeTest, NothingIsTakenAfterEverythingWasSaidToBeTaken) {
  EXPECT_TRUE(runtime_.LoadModule("a kernel").ok());
  ASSERT_TRUE(runtime_.BeginCapture(stream_).ok());
  runtime_.ForbidTaking();
  ExpectMisuse(runtime_.EndCapture(stream_).status(), "a graph after everything was said to be taken");
  ExpectMisuse(runtime_.Malloc(16).status(), "16 bytes after everything was said to be taken");
  ExpectMisuse(runtime_.MallocHost(16).status(), "16 bytes after everything was said to be taken");
  ExpectMisuse(runtime_.LoadModule("a kernel"), "a kernel after everything was said to be taken");
  EXPECT_TRUE(runtime_.Free(device_).ok());
}

TEST(StandInGraphMemory, GraphsTakeMemoryUntilTheyAreDestroyed) {
  StandInRuntime runtime({.memory_bytes = 1000, .graph_bytes = 600});
  const cuda::StreamHandle stream = *runtime.CreateStream(CudaStreamPriority::kNormal);
  ASSERT_TRUE(runtime.BeginCapture(stream).ok());
  const cuda::GraphHandle graph = *runtime.EndCapture(stream);
  EXPECT_EQ(*runtime.FreeBytes(), 400);
  ASSERT_TRUE(runtime.BeginCapture(stream).ok());
  EXPECT_EQ(runtime.EndCapture(stream).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(runtime.DestroyGraph(graph).ok());
  EXPECT_EQ(*runtime.FreeBytes(), 1000);
}

// Twice by block, in the order in which they ran: which launch it was, when its first and when its last thread ran.
std::mutex trail_mutex;
std::vector<int> trail;
bool both_launches = false;  // Whether the trail has both.

SHALE_KERNEL LeaveTrail(int launch) {
  const auto leave = [launch] {
    const std::lock_guard lock(trail_mutex);
    both_launches = both_launches || (!trail.empty() && trail.back() != launch);
    // Gives the other stream's thread time to come.
    if (!both_launches) std::this_thread::sleep_for(std::chrono::microseconds(50));
    trail.push_back(launch);
  };
  if (cuda::threadIdx.x == 0) leave();
  cuda::__syncthreads();
  if (cuda::threadIdx.x == 0) leave();
}

TEST(StandInInterleaving, BlocksOfTwoStreamsRunOneByOneInRandomOrder) {
  constexpr int kBlocks = 2000;
  StandInRuntime runtime({.interleave = true});
  trail.clear();
  std::atomic<int> waiting = 2;  // Holds back both streams until both have their kernel.
  for (int launch = 0; launch < 2; ++launch) {
    const cuda::StreamHandle stream = *runtime.CreateStream(CudaStreamPriority::kNormal);
    ASSERT_TRUE(runtime
                    .LaunchHostFunction(
                        [](void* waiting) {
                          auto& count = *static_cast<std::atomic<int>*>(waiting);
                          for (--count; count > 0;) std::this_thread::yield();
                        },
                        &waiting, stream)
                    .ok());
    ASSERT_TRUE(
        cuda::Launch("LeaveTrail", LeaveTrail, {.grid = cuda::dim3(kBlocks), .block = cuda::dim3(2)}, stream, launch)
            .ok());
  }
  ASSERT_TRUE(runtime.SynchronizeDevice().ok());
  ASSERT_EQ(trail.size(), 4 * kBlocks);
  int switches = 0;
  for (size_t i = 0; i < trail.size(); i += 2) {
    ASSERT_EQ(trail[i], trail[i + 1]) << "two blocks at the same time";
    switches += i > 0 && trail[i] != trail[i - 1];
  }
  EXPECT_GT(switches, 100);  // With turns, 2000 are expected.
}

}  // namespace
}  // namespace shale::cuda_on_host
