#include "engine/compile/memory/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "engine/compile/program/range_set.h"

namespace shale::testing {
namespace {

void ExpectNoOverlap(const std::vector<PackInterval>& intervals, const PackedIntervals& packing) {
  ASSERT_EQ(packing.offsets.size(), intervals.size());
  int64_t height = 0;
  for (size_t i = 0; i < intervals.size(); ++i) {
    const PackInterval& a = intervals[i];
    ASSERT_GE(packing.offsets[i], 0);
    height = std::max(height, packing.offsets[i] + a.bytes);
    for (size_t j = 0; j < i; ++j) {
      const PackInterval& b = intervals[j];
      if (a.last < b.first || b.last < a.first) continue;
      ASSERT_TRUE(packing.offsets[i] + a.bytes <= packing.offsets[j] ||
                  packing.offsets[j] + b.bytes <= packing.offsets[i])
          << i << " and " << j;
    }
  }
  EXPECT_EQ(packing.height, height);
  EXPECT_GE(packing.height, LargestLiveBytes(intervals));
}

std::vector<PackInterval> RandomIntervals(uint64_t seed, int count, int times, int longest) {
  std::mt19937_64 random(seed);
  std::vector<PackInterval> intervals;
  for (int i = 0; i < count; ++i) {
    const int32_t first = random() % times, length = random() % longest;
    intervals.push_back({static_cast<int64_t>(random() % 20), first, std::min(first + length, times - 1)});
  }
  return intervals;
}

TEST(Packing, NeverOverlapsInTimeAndPlace) {
  for (uint64_t seed = 0; seed < 120; ++seed) {
    const std::vector<PackInterval> intervals =
        RandomIntervals(seed, 1 + seed % 60, 1 + seed % 71, 1 + seed % 7 * (seed % 11));
    ExpectNoOverlap(intervals, PackIntervals(intervals));
  }
}

TEST(Packing, OfManyIntervalsNeverOverlaps) {
  const std::vector<PackInterval> intervals = RandomIntervals(1, 1000, 1500, 100);
  ExpectNoOverlap(intervals, PackIntervals(intervals));
}

TEST(Packing, IsDeterministic) {
  const std::vector<PackInterval> intervals = RandomIntervals(2, 300, 200, 20);
  EXPECT_EQ(PackIntervals(intervals).offsets, PackIntervals(intervals).offsets);
}

TEST(Packing, OfNothingIsEmpty) {
  EXPECT_EQ(PackIntervals({}).height, 0);
  EXPECT_EQ(LargestLiveBytes({}), 0);
  const std::vector<PackInterval> empty = {{0, 0, 5}, {0, 2, 3}};
  EXPECT_EQ(PackIntervals(empty).height, 0);
}

TEST(Packing, ReusesBytesOfWhatHasEndedTheTimeBefore) {
  const std::vector<PackInterval> intervals = {{8, 0, 4}, {8, 5, 9}, {8, 10, 10}};
  EXPECT_EQ(PackIntervals(intervals).height, 8);
  EXPECT_EQ(LargestLiveBytes(intervals), 8);
}

TEST(Packing, OfBricksIsTwoHigh) {
  std::vector<PackInterval> intervals;
  for (int i = 0; i < 100; ++i) intervals.push_back({10, 5 * i, 5 * i + 9});
  EXPECT_EQ(PackIntervals(intervals).height, 20);
}

TEST(Packing, OfANestWithWorkspaceMeetsTheLowerBound) {
  // Long intervals are kept from forward to backward. Short intervals of many sizes lie throughout.
  std::vector<PackInterval> intervals;
  for (int i = 0; i < 50; ++i) {
    intervals.push_back({7, 3 * i, 300 - 3 * i});
    for (int32_t at : {3 * i, 300 - 3 * i}) intervals.push_back({i * i % 31, at, at + 2});
  }
  const PackedIntervals packing = PackIntervals(intervals);
  ExpectNoOverlap(intervals, packing);
  EXPECT_EQ(packing.height, LargestLiveBytes(intervals));
}

TEST(Packing, IsWithinAFewPercentOfTheLowerBound) {
  double worst = 1, sum = 0;
  constexpr int kSeeds = 15;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const std::vector<PackInterval> intervals = RandomIntervals(seed, 200, 400, 30);
    const double ratio =
        static_cast<double>(PackIntervals(intervals).height) / static_cast<double>(LargestLiveBytes(intervals));
    worst = std::max(worst, ratio);
    sum += ratio;
  }
  EXPECT_LT(worst, 1.10);
  EXPECT_LT(sum / kSeeds, 1.03);
}

TEST(RangeSet, AgreesWithASetOfBytes) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::mt19937_64 random(seed);
    RangeSet set;
    std::vector<bool> bytes(64, false);
    for (int i = 0; i < 12; ++i) {
      int64_t begin = random() % 64, end = random() % 65;
      if (begin > end) std::swap(begin, end);
      set.Add({begin, end});
      std::fill(bytes.begin() + begin, bytes.begin() + end, true);
      for (int64_t b = 0; b <= 64; ++b) {
        for (int64_t e = b; e <= 64; ++e) {
          const bool all = std::all_of(bytes.begin() + b, bytes.begin() + e, [](bool in) { return in; });
          ASSERT_EQ(set.Contains({b, e}), all) << b << " " << e;
        }
      }
    }
    for (size_t i = 1; i < set.ranges().size(); ++i) {
      EXPECT_LT(set.ranges()[i - 1].end, set.ranges()[i].begin) << "ranges that touch are one";
    }
  }
}

}  // namespace
}  // namespace shale::testing
