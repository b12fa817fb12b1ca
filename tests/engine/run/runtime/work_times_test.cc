#include "engine/run/runtime/work_times.h"

#include "gtest/gtest.h"
#include "tests/engine/run/runtime/two_ranks.h"

namespace shale::testing {
namespace {

TEST(WorkTimes, WaitingForARankIsNotTheTimeOfACollective) {
  WorkTimes times;
  times.Add(SmallProgram(), kTwoRanks, {kEarly, kLate}, 1000e-9);
  ASSERT_EQ(times.works().size(), 2u);
  for (const auto& [text, samples] : times.works()) {
    if (samples.work.kind.find("AllReduceSum") == 0) {
      EXPECT_EQ(samples.issues, 1);
      ASSERT_EQ(samples.seconds.size(), 1u);
      EXPECT_NEAR(samples.seconds[0], 100e-9, 1e-15);
    } else {
      EXPECT_EQ(samples.issues, 2);
      EXPECT_NEAR(MeanOf(samples.seconds).mean, 250e-9, 1e-15);  // Of 100, 200, 300 and 400 ns.
      EXPECT_NEAR(MeanOf(samples.seconds).spread, 150e-9, 1e-15);
    }
  }
  EXPECT_NEAR(times.issue_seconds(), 20e-9, 1e-15);  // The middle of 10 and 30.
  EXPECT_NEAR(times.between_steps_seconds(), 200e-9, 1e-15);
  EXPECT_NEAR(times.rank_spread(), 150.0 / 700, 1e-9);  // One rank waits 300, and the other not at all.
}

}  // namespace
}  // namespace shale::testing
