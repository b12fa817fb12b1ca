#include <cstdint>

#include "engine/run/runtime/rank_runtime.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

// Regression: once the marks had wrapped around, a failed run named the issue after the last one that had finished,
// because it counted the mark 0, which is skipped.
TEST(Marks, AreCountedAcrossTheHighest) {
  for (uint32_t from : {uint32_t{0}, uint32_t{1}, uint32_t{41}, UINT32_MAX - 3, UINT32_MAX - 1, UINT32_MAX}) {
    uint32_t to = from;
    for (uint32_t count = 0; count < 9; ++count) {
      EXPECT_EQ(MarksBetween(from, to), count) << from << " to " << to;
      to = MarkAfter(to);
      EXPECT_NE(to, 0u) << "it stands for no mark";
    }
  }
}

TEST(Marks, AnOlderMarkIsOnceAround) {
  EXPECT_EQ(MarksBetween(7, 5), UINT32_MAX - 2);
  EXPECT_EQ(MarksBetween(1, UINT32_MAX), UINT32_MAX - 1);
}

}  // namespace
}  // namespace shale
