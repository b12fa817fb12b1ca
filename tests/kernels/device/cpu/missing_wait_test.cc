// [Note: happens-before of streams] promises that ThreadSanitizer finds a missing wait even if the threads happen to
// run in the right order. Here long sleeps make them run in that order.

#include <chrono>
#include <cstdlib>
#include <thread>

#include "gtest/gtest.h"
#include "kernels/device/cpu/cpu_device.h"

namespace shale {
namespace {

enum class Order { kWait, kNoWait };

// One stream writes, and another reads 50 ms later, while the launching thread goes on enqueueing on the first. Returns
// what was read.
int WriteThenRead(Order order, int enqueued_between) {
  CpuDevice device;
  std::unique_ptr<Stream> first = *device.CreateStream("first"), second = *device.CreateStream("second");
  std::unique_ptr<Event> written = *device.CreateEvent();
  auto& writer = static_cast<CpuStream&>(*first);
  auto& reader = static_cast<CpuStream&>(*second);
  int value = 0, seen = 0;
  const auto nothing = [] { return absl::OkStatus(); };
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(50)); };
  pause();  // Both threads sleep now, waiting to be woken.
  (void)writer.Enqueue([&] {
    value = 7;
    return absl::OkStatus();
  });
  (void)writer.Record(*written);
  pause();
  for (int i = 0; i < enqueued_between; ++i) {
    (void)writer.Enqueue(nothing);
    pause();
  }
  if (order == Order::kWait) (void)reader.Wait(*written);
  (void)reader.Enqueue([&] {
    seen = value;
    return absl::OkStatus();
  });
  (void)reader.Synchronize();
  (void)writer.Synchronize();
  return seen;
}

#if defined(__SANITIZE_THREAD__)

TEST(MissingWaitDeathTest, AMissingWaitIsADataRaceEvenIfTheOrderHappensToBeRight) {
  for (int enqueued_between : {0, 3}) {
    EXPECT_DEATH(std::_Exit(WriteThenRead(Order::kNoWait, enqueued_between)), "data race");
  }
}

#endif

TEST(MissingWaitDeathTest, AWaitIsEnough) {
  for (int enqueued_between : {0, 3}) {
    EXPECT_EXIT(std::_Exit(WriteThenRead(Order::kWait, enqueued_between)), ::testing::ExitedWithCode(7), "");
  }
}

}  // namespace
}  // namespace shale
