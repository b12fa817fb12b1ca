#include "sharding/comm/deadline.h"

#include <thread>

#include "gtest/gtest.h"

namespace shale {
namespace {

constexpr double kLimit = 1.0 / 64;  // A quarter of it is an exact double.

void SleepTwiceTheLimit() { std::this_thread::sleep_for(std::chrono::duration<double>(2 * kLimit)); }

TEST(DeadlineTest, AStopCountsOnlyAsFarAsAQuarter) {
  Deadline deadline(kLimit);
  for (int looks = 1; looks <= 3; ++looks) {
    SleepTwiceTheLimit();
    EXPECT_FALSE(deadline.Passed()) << looks;
  }
  SleepTwiceTheLimit();
  EXPECT_TRUE(deadline.Passed());
}

TEST(DeadlineTest, EndsForWhoLooksOftenEnough) {
  Deadline deadline(kLimit);
  const auto begin = std::chrono::steady_clock::now();
  int looks = 0;
  for (; !deadline.Passed(); ++looks) std::this_thread::sleep_for(deadline.Pause());
  EXPECT_GE(looks, 3);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::duration<double>(kLimit));
}

TEST(DeadlineTest, WithoutALimitItDoesNotEnd) {
  Deadline deadline(0);
  SleepTwiceTheLimit();
  EXPECT_FALSE(deadline.Passed());
}

}  // namespace
}  // namespace shale
