#include "kernels/device/cpu/counter.h"

#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace shale {
namespace {

TEST(CounterTest, ZeroIsReachedFromTheStart) {
  Counter counter;
  EXPECT_EQ(counter.AwaitAtLeast(0), 0);
}

// Every thread waits for counts of its own, near and far: the wake-up of one must not swallow that of another.
TEST(CounterTest, NoWakeUpIsLost) {
  constexpr uint64_t kCount = 20000;
  Counter counter;
  std::vector<std::thread> waiting;
  for (uint64_t stride : {1, 2, 3, 7, 64, 999, 20000}) {
    waiting.emplace_back([&counter, stride] {
      for (uint64_t target = stride; target <= kCount; target += stride) {
        ASSERT_GE(counter.AwaitAtLeast(target), target);
      }
    });
  }
  for (uint64_t i = 0; i < kCount; ++i) {
    counter.Advance();
    if (i % 64 == 0) std::this_thread::yield();
  }
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(counter.value(), kCount);
}

// Two threads each wait for the other's next step. Neither spins, and neither misses its wake-up.
TEST(CounterTest, TwoThreadsTakeTurns) {
  constexpr uint64_t kTurns = 5000;
  Counter ping, pong;
  std::vector<uint64_t> log;
  std::thread other([&] {
    for (uint64_t i = 0; i < kTurns; ++i) {
      ping.AwaitAtLeast(i + 1);
      log.push_back(2 * i + 1);
      pong.Advance();
    }
  });
  for (uint64_t i = 0; i < kTurns; ++i) {
    log.push_back(2 * i);
    ping.Advance();
    pong.AwaitAtLeast(i + 1);
  }
  other.join();
  ASSERT_EQ(log.size(), 2 * kTurns);
  for (uint64_t i = 0; i < log.size(); ++i) ASSERT_EQ(log[i], i);
}

}  // namespace
}  // namespace shale
