#include "kernels/integers.h"

#include <gtest/gtest.h>

namespace shale {
namespace {

TEST(Integers, DivideAndRoundAtMultiplesAndBetweenThem) {
  struct Case {
    int64_t n, quotient, up, down;
  };
  for (const Case& c : {Case{0, 0, 0, 0}, Case{1, 1, 64, 0}, Case{63, 1, 64, 0}, Case{64, 1, 64, 64},
                        Case{65, 2, 128, 64}, Case{128, 2, 128, 128}}) {
    EXPECT_EQ(CeilDivide(c.n, 64), c.quotient) << c.n;
    EXPECT_EQ(RoundUp(c.n, 64), c.up) << c.n;
    EXPECT_EQ(RoundDown(c.n, 64), c.down) << c.n;
  }
  EXPECT_EQ(CeilDivide(7, 1), 7);
  EXPECT_EQ(RoundUp((int64_t{1} << 62) + 1, 2), (int64_t{1} << 62) + 2);
}

}  // namespace
}  // namespace shale
