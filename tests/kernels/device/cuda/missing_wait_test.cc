// On the stand-in, a missing wait between the streams of a CudaDevice is a data race for ThreadSanitizer even if the
// streams happen to run in the right order: see [Note: happens-before of streams]. Here long sleeps make them run in
// that order.
#include <chrono>
#include <cstdlib>
#include <thread>

#include "gtest/gtest.h"
#include "tests/kernels/device/cuda/device_on_stand_in.h"
#include "tests/kernels/device/cuda/increment.h"

namespace shale {
namespace {

enum class Order { kWait, kNoWait };

// One stream copies integers in, and a kernel on another increments them 100 ms later. Returns the first integer.
int CopyThenIncrement(Order order) {
  constexpr int64_t kIntegers = 100, kBytes = kIntegers * 4;
  DeviceOnStandIn device({}, {});
  std::unique_ptr<Arena> arena = *device.Allocate(kBytes), host = *device.cuda().AllocatePinned(kBytes);
  std::unique_ptr<Stream> copy = *device.CreateStream("copy"), compute = *device.CreateStream("compute");
  std::unique_ptr<Event> copied = *device.CreateEvent();
  auto* integers = reinterpret_cast<int32_t*>(host->base());
  integers[0] = 6;
  (void)copy->Copy(arena->base(), integers, kBytes);
  (void)copy->Record(*copied);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  if (order == Order::kWait) (void)compute->Wait(*copied);
  (void)(*CudaStream::From(*compute))->Enqueue([&](cuda::StreamHandle handle) {
    return cuda::Increment(arena->base(), kIntegers, handle);
  });
  (void)compute->Synchronize();
  (void)copy->Copy(integers, arena->base(), kBytes);
  return copy->Synchronize().ok() ? integers[0] : 1;
}

// Does the same 5 times in a graph. Returns the first integer less 4.
int CopyThenIncrementInAGraph(Order order) {
  constexpr int64_t kIntegers = 100, kBytes = kIntegers * 4;
  DeviceOnStandIn device({}, {});
  std::unique_ptr<Arena> arena = *device.Allocate(kBytes), host = *device.cuda().AllocatePinned(kBytes);
  std::unique_ptr<Stream> copy = *device.CreateStream("copy"), compute = *device.CreateStream("compute");
  std::unique_ptr<Event> begun = *device.CreateEvent(), copied = *device.CreateEvent();
  std::unique_ptr<Event> computed = *device.CreateEvent();
  auto* integers = reinterpret_cast<int32_t*>(host->base());
  integers[0] = 6;
  (void)copy->BeginCapture();
  (void)copy->Record(*begun);
  (void)copy->Copy(arena->base(), integers, kBytes);
  // A record that is not needed could order the streams by accident, where a stream that waits for an earlier record
  // comes late.
  if (order == Order::kWait) (void)copy->Record(*copied);
  (void)compute->Wait(order == Order::kWait ? *copied : *begun);
  (void)(*CudaStream::From(*compute))->Enqueue([&](cuda::StreamHandle handle) {
    return cuda::Increment(arena->base(), kIntegers, handle);
  });
  (void)compute->Record(*computed);
  (void)copy->Wait(*computed);
  (void)copy->Copy(integers, arena->base(), kBytes);
  std::unique_ptr<Graph> graph = *copy->EndCapture();
  for (int launch = 0; launch < 5; ++launch) (void)graph->Launch(*copy);
  return copy->Synchronize().ok() ? integers[0] - 4 : 1;
}

#if defined(__SANITIZE_THREAD__)

TEST(MissingWaitDeathTest, AMissingWaitIsADataRaceEvenIfTheOrderHappensToBeRight) {
  EXPECT_DEATH(std::_Exit(CopyThenIncrement(Order::kNoWait)), "data race");
}

TEST(MissingWaitDeathTest, SoIsAMissingWaitInAGraph) {
  EXPECT_DEATH(std::_Exit(CopyThenIncrementInAGraph(Order::kNoWait)), "data race");
}

#endif

TEST(MissingWaitDeathTest, AWaitIsEnough) {
  EXPECT_EXIT(std::_Exit(CopyThenIncrement(Order::kWait)), ::testing::ExitedWithCode(7), "");
  EXPECT_EXIT(std::_Exit(CopyThenIncrementInAGraph(Order::kWait)), ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace shale
