#include "sharding/comm/patience.h"

#include <thread>

#include "gtest/gtest.h"

namespace shale {
namespace {

constexpr double kLimit = 1.0 / 64;  // A quarter of it is an exact double.

void SleepTwiceTheLimit() { std::this_thread::sleep_for(std::chrono::duration<double>(2 * kLimit)); }

TEST(PatienceTest, AStopCountsOnlyAsFarAsAQuarter) {
  Patience patience(kLimit);
  for (int looks = 1; looks <= 3; ++looks) {
    SleepTwiceTheLimit();
    EXPECT_FALSE(patience.Ended()) << looks;
  }
  SleepTwiceTheLimit();
  EXPECT_TRUE(patience.Ended());
}

TEST(PatienceTest, EndsForWhoLooksOftenEnough) {
  Patience patience(kLimit);
  const auto begin = std::chrono::steady_clock::now();
  int looks = 0;
  for (; !patience.Ended(); ++looks) std::this_thread::sleep_for(patience.Pause());
  EXPECT_GE(looks, 3);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::duration<double>(kLimit));
}

TEST(PatienceTest, WithoutALimitItDoesNotEnd) {
  Patience patience(0);
  SleepTwiceTheLimit();
  EXPECT_FALSE(patience.Ended());
}

}  // namespace
}  // namespace shale
