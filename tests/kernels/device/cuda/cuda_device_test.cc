// Tests what CudaDevice adds to the laws of every device, on a stand-in for CUDA.
#include "kernels/device/cuda/cuda_device.h"

#include <string>

#include "kernels/device/cpu/cpu_device.h"
#include "tests/kernels/device/cuda/device_on_stand_in.h"
#include "tests/kernels/device/cuda/increment.h"

namespace shale {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int64_t kIntegers = 200, kBytes = 4 * kIntegers;

// Adds one to each of the first kIntegers integers of an arena.
absl::Status Increment(const Arena& arena, Stream& stream) {
  return (*CudaStream::From(stream))->Enqueue([&](cuda::StreamHandle handle) {
    return cuda::Increment(arena.base(), kIntegers, handle);
  });
}

class CudaDeviceTest : public ::testing::Test {
 protected:
  std::unique_ptr<Arena> MakeArena(int64_t size_bytes) { return *device_.Allocate(size_bytes); }
  std::unique_ptr<Arena> MakePinned(int64_t size_bytes) { return *device_.cuda().AllocatePinned(size_bytes); }
  std::unique_ptr<Stream> MakeStream(absl::string_view name) { return *device_.CreateStream(name); }

  DeviceOnStandIn device_{{.marks = true}, {}};
};

TEST_F(CudaDeviceTest, AKernelRunsBetweenTheCopiesBeforeAndAfterIt) {
  std::unique_ptr<Arena> arena = MakeArena(kBytes), host = MakePinned(kBytes);
  std::unique_ptr<Stream> stream = MakeStream("compute");
  auto* integers = reinterpret_cast<int32_t*>(host->base());
  for (int turn = 0; turn < 20; ++turn) {
    ASSERT_TRUE(stream->Copy(arena->base(), integers, kBytes).ok());
    ASSERT_TRUE(Increment(*arena, *stream).ok());
    ASSERT_TRUE(Increment(*arena, *stream).ok());
    ASSERT_TRUE(stream->Copy(integers, arena->base(), kBytes).ok());
  }
  ASSERT_TRUE(stream->Synchronize().ok());
  for (int i = 0; i < kIntegers; ++i) ASSERT_EQ(integers[i], 40);
}

TEST_F(CudaDeviceTest, AKernelOnOneStreamIsSeenByAnotherThatWaitsForIt) {
  std::unique_ptr<Arena> arena = MakeArena(kBytes), host = MakePinned(kBytes);
  std::unique_ptr<Stream> copy = MakeStream("copy"), compute = MakeStream("compute");
  std::unique_ptr<Event> loaded = *device_.CreateEvent(), computed = *device_.CreateEvent();
  auto* integers = reinterpret_cast<int32_t*>(host->base());
  integers[kIntegers - 1] = 5;
  ASSERT_TRUE(copy->Copy(arena->base(), integers, kBytes).ok());
  ASSERT_TRUE(copy->Record(*loaded).ok());
  ASSERT_TRUE(compute->Wait(*loaded).ok());
  ASSERT_TRUE(Increment(*arena, *compute).ok());
  ASSERT_TRUE(compute->Record(*computed).ok());
  ASSERT_TRUE(copy->Wait(*computed).ok());
  ASSERT_TRUE(copy->Copy(integers, arena->base(), kBytes).ok());
  ASSERT_TRUE(copy->Synchronize().ok());
  EXPECT_EQ(integers[kIntegers - 1], 6);
}

TEST_F(CudaDeviceTest, AFailedKernelFailsAllStreamsAndStays) {
  std::unique_ptr<Arena> arena = MakeArena(kBytes), host = MakePinned(kBytes);
  std::unique_ptr<Stream> compute = MakeStream("compute"), copy = MakeStream("copy");
  auto* on = *CudaStream::From(*compute);
  device_.runtime().FailKernel(2);
  ASSERT_TRUE(Increment(*arena, *compute).ok());
  ASSERT_TRUE(on->Mark(7).ok());
  ASSERT_TRUE(Increment(*arena, *compute).ok());  // The one that fails.
  (void)on->Mark(8);                              // The failure may be known by now or not.
  (void)compute->Copy(host->base(), arena->base(), 4);
  const absl::Status error = compute->Synchronize();
  EXPECT_EQ(error.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(error.message()),
              AllOf(HasSubstr("stream compute: "), HasSubstr("an illegal memory access was encountered")));
  EXPECT_EQ(compute->Synchronize(), error);
  EXPECT_EQ(Increment(*arena, *compute), error);
  EXPECT_THAT(std::string(copy->Synchronize().message()), HasSubstr("an illegal memory access was encountered"));
  EXPECT_EQ(device_.Allocate(1).status().code(), absl::StatusCode::kInternal);
}

TEST_F(CudaDeviceTest, TheLastMarkThatWasReachedOutlivesAFailure) {
  std::unique_ptr<Arena> arena = MakeArena(kBytes);
  std::unique_ptr<Stream> compute = MakeStream("compute"), copy = MakeStream("copy");
  auto* on = *CudaStream::From(*compute);
  ASSERT_TRUE(Increment(*arena, *compute).ok());
  ASSERT_TRUE(on->Mark(41).ok());
  device_.runtime().FailKernel(1);
  ASSERT_TRUE(Increment(*arena, *compute).ok());
  (void)on->Mark(42);
  EXPECT_FALSE(compute->Synchronize().ok());
  EXPECT_EQ(compute->reached_mark(), 41u);
  EXPECT_EQ(copy->reached_mark(), 0u);
  DeviceOnStandIn without({.marks = false}, {});
  EXPECT_EQ((*without.CreateStream("compute"))->reached_mark(), std::nullopt);
  EXPECT_EQ(without.cuda().why_no_marks(), "");
}

TEST(CudaDevice, WorksWithoutMarksWhereTheDriverCannotWriteThem) {
  DeviceOnStandIn device({.marks = true}, {.stream_writes = false});
  EXPECT_THAT(device.cuda().why_no_marks(), HasSubstr("the driver does not support cuStreamWriteValue32"));
  const std::unique_ptr<Stream> stream = *device.CreateStream("compute");
  EXPECT_TRUE(stream->Mark(3).ok());
  EXPECT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(stream->reached_mark(), std::nullopt);
}

TEST(CudaDeviceSynchronousTest, AnErrorIsThatOfTheVeryCall) {
  DeviceOnStandIn device({.synchronous = true}, {});
  std::unique_ptr<Arena> arena = *device.Allocate(kBytes);
  std::unique_ptr<Stream> stream = *device.CreateStream("compute");
  device.runtime().FailKernel(3);
  EXPECT_TRUE(Increment(*arena, *stream).ok());
  EXPECT_TRUE(Increment(*arena, *stream).ok());
  EXPECT_EQ(Increment(*arena, *stream).code(), absl::StatusCode::kInternal);
}

// A program that continued without what CUDA refused would compute from garbage.
TEST(CudaDeviceRefusalTest, WhatCudaRefusesFailsTheStreamAndThoseThatWaitForIt) {
  cuda_on_host::StandInRuntime runtime;
  {
    std::unique_ptr<CudaDevice> device = *CudaDevice::Create(runtime, {});
    std::unique_ptr<Arena> arena = *device->Allocate(4096);
    std::unique_ptr<Stream> first = *device->CreateStream("first"), second = *device->CreateStream("second");
    std::unique_ptr<Stream> third = *device->CreateStream("third");
    std::unique_ptr<Event> event = *device->CreateEvent();
    std::byte pageable[8];
    const absl::Status error = first->Copy(arena->base(), pageable, 8);
    EXPECT_THAT(std::string(error.message()),
                AllOf(HasSubstr("stream first: copy of 8 bytes: cudaMemcpyAsync"), HasSubstr("is not pinned")));
    EXPECT_EQ(first->Record(*event), error);
    EXPECT_EQ(second->Wait(*event), error);
    EXPECT_EQ(second->Synchronize(), error);
    EXPECT_EQ(first->Synchronize(), error);
    EXPECT_TRUE(third->Synchronize().ok());
    EXPECT_EQ(third->Copy(arena->base(), arena->base(), -1).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(third->Synchronize().ok());
  }
  EXPECT_TRUE(runtime.CheckAllReleased().ok());
}

TEST_F(CudaDeviceTest, AGraphDoesWhatItsStreamsWereGiven) {
  ASSERT_TRUE(device_.CanCapture());
  std::unique_ptr<Arena> arena = MakeArena(kBytes), host = MakePinned(2 * kBytes);
  std::unique_ptr<Stream> compute = MakeStream("compute"), copy = MakeStream("copy");
  std::unique_ptr<Event> begun = *device_.CreateEvent(), loaded = *device_.CreateEvent();
  auto* integers = reinterpret_cast<int32_t*>(host->base());
  integers[1] = 10;
  integers[kIntegers + 1] = 20;
  ASSERT_TRUE(compute->BeginCapture().ok());
  ASSERT_TRUE(compute->Record(*begun).ok());
  ASSERT_TRUE(copy->Wait(*begun).ok());
  const CapturedCopy in = *copy->CaptureCopy(arena->base(), integers, kBytes);
  EXPECT_EQ(copy->CaptureCopy(arena->base(), integers, 0)->size_bytes, 0);
  ASSERT_TRUE(copy->Record(*loaded).ok());
  ASSERT_TRUE(compute->Wait(*loaded).ok());
  ASSERT_TRUE(Increment(*arena, *compute).ok());
  ASSERT_TRUE(compute->Copy(integers, arena->base(), kBytes).ok());
  std::unique_ptr<Graph> graph = *compute->EndCapture();
  EXPECT_TRUE(copy->Synchronize().ok());
  EXPECT_EQ(integers[1], 10);
  for (int launch = 0; launch < 3; ++launch) ASSERT_TRUE(graph->Launch(*compute).ok());
  ASSERT_TRUE(graph->SetCopy({}, nullptr, nullptr).ok());
  ASSERT_TRUE(graph->SetCopy(in, arena->base(), integers + kIntegers).ok());
  ASSERT_TRUE(compute->Synchronize().ok());
  EXPECT_EQ(integers[1], 13);
  ASSERT_TRUE(graph->Launch(*compute).ok());
  ASSERT_TRUE(compute->Synchronize().ok());
  EXPECT_EQ(integers[1], 21);
}

TEST_F(CudaDeviceTest, AnErrorInACaptureEndsItAndStays) {
  std::unique_ptr<Arena> arena = MakeArena(kBytes);
  std::unique_ptr<Stream> compute = MakeStream("compute");
  ASSERT_TRUE(compute->BeginCapture().ok());
  const absl::Status error =
      (*CudaStream::From(*compute))->Enqueue([](cuda::StreamHandle) { return absl::InternalError("no such kernel"); });
  EXPECT_EQ(compute->EndCapture().status(), error);
  EXPECT_EQ(compute->Synchronize(), error);
}

TEST(CudaDeviceSynchronousTest, CapturesNothing) {
  DeviceOnStandIn device({.synchronous = true}, {});
  EXPECT_FALSE(device.CanCapture());
  std::unique_ptr<Stream> stream = *device.CreateStream("compute");
  EXPECT_EQ(stream->BeginCapture().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(stream->Synchronize().ok());
}

TEST_F(CudaDeviceTest, NoMemoryIsAnErrorThatSaysWhatIsFree) {
  device_.runtime().FailAllocation(1);
  const absl::Status error = device_.Allocate(1000).status();
  EXPECT_EQ(error.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(error.message()), AllOf(HasSubstr("an arena of 1000 bytes: cudaMalloc: out of memory"),
                                                  HasSubstr("1073741824 bytes free")));
  device_.runtime().FailAllocation(1);
  EXPECT_EQ(device_.cuda().AllocatePinned(1000).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(device_.Allocate(1000).ok());
}

TEST_F(CudaDeviceTest, CommunicationHasTheHighestPriority) {
  for (const char* name : {"gather", "reduce", "compute", "copy"}) {
    std::unique_ptr<Stream> stream = MakeStream(name);
    const bool highest =
        device_.runtime().PriorityOf((*CudaStream::From(*stream))->handle()) == CudaStreamPriority::kHighest;
    EXPECT_EQ(highest, name == std::string("gather") || name == std::string("reduce")) << name;
  }
}

TEST(CudaDeviceCreateTest, AGpuThatIsNotThereIsRefused) {
  cuda_on_host::StandInRuntime two({.devices = 2}), none({.devices = 0});
  EXPECT_TRUE(CudaDevice::Create(two, {.ordinal = 1}).ok());
  const absl::Status error = CudaDevice::Create(two, {.ordinal = 2}).status();
  EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(error.message()), HasSubstr("wanted GPU 2, found 2"));
  EXPECT_EQ(CudaDevice::Create(none, {}).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(CudaDeviceCreateTest, OneThreadMayWorkWithTwoGpus) {
  cuda_on_host::StandInRuntime runtime({.devices = 2});
  {
    std::unique_ptr<CudaDevice> a = *CudaDevice::Create(runtime, {.ordinal = 0});
    std::unique_ptr<CudaDevice> b = *CudaDevice::Create(runtime, {.ordinal = 1});
    std::unique_ptr<Arena> of_a = *a->Allocate(64), of_b = *b->Allocate(64);
    std::unique_ptr<Stream> on_a = *a->CreateStream("copy"), on_b = *b->CreateStream("copy");
    std::unique_ptr<Event> event = *a->CreateEvent();
    ASSERT_TRUE(on_a->Copy(of_b->base(), of_a->base(), 64).ok());
    ASSERT_TRUE(on_a->Record(*event).ok());
    ASSERT_TRUE(on_b->Wait(*event).ok());
    ASSERT_TRUE(on_b->Copy(of_a->base(), of_b->base(), 64).ok());
    EXPECT_TRUE(on_b->Synchronize().ok());
    EXPECT_TRUE(on_a->Synchronize().ok());
  }
  EXPECT_THAT(runtime.misuse(), ::testing::IsEmpty());
  EXPECT_TRUE(runtime.CheckAllReleased().ok());
}

TEST_F(CudaDeviceTest, AnObjectOfAnotherDeviceIsRefusedAndFailsNothing) {
  CpuDevice cpu;
  std::unique_ptr<Stream> stream = MakeStream("compute"), cpu_stream = *cpu.CreateStream("compute");
  std::unique_ptr<Event> cpu_event = *cpu.CreateEvent();
  EXPECT_EQ(stream->Record(*cpu_event).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(stream->Wait(*cpu_event).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CudaStream::From(*cpu_stream).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*CudaStream::From(*stream), stream.get());
  EXPECT_TRUE(stream->Synchronize().ok());
}

using CudaDeviceDeathTest = CudaDeviceTest;

TEST_F(CudaDeviceDeathTest, HostCodeThatFollowsADevicePointerCrashes) {
  std::unique_ptr<Arena> arena = MakeArena(4096);
  EXPECT_DEATH(
      {
        volatile std::byte* address = arena->base();
        *address = std::byte{1};
      },
      "");
}

}  // namespace
}  // namespace shale
