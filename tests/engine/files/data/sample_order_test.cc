#include "engine/files/data/sample_order.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::ElementsAre;

std::vector<int64_t> Epoch(const SampleOrder& order, int64_t epoch) {
  std::vector<int64_t> samples(order.sample_count());
  for (int64_t i = 0; i < order.sample_count(); ++i) samples[i] = order.At(epoch * order.sample_count() + i);
  return samples;
}

TEST(SampleCountTest, TheLastTargetNeedsATokenOfItsOwn) {
  EXPECT_EQ(SampleCount(0, 4), 0);
  EXPECT_EQ(SampleCount(1, 4), 0);
  EXPECT_EQ(SampleCount(4, 4), 0);
  EXPECT_EQ(SampleCount(5, 4), 1);
  EXPECT_EQ(SampleCount(8, 4), 1);
  EXPECT_EQ(SampleCount(9, 4), 2);
  EXPECT_EQ(SampleCount(2, 1), 1);
}

TEST(SampleOrderTest, SequentialIsTheIdentityInEveryEpoch) {
  const SampleOrder order(DataOrder::kSequential, 5, 3);
  for (int64_t p = 0; p < 12; ++p) EXPECT_EQ(order.At(p), p % 3);
}

TEST(SampleOrderTest, EveryEpochHasEverySampleOnce) {
  for (const int64_t count : {1, 2, 3, 4, 5, 7, 16, 17, 255, 256, 257, 1000, 1023, 1024, 1025, 4099, 65537}) {
    const SampleOrder order(DataOrder::kShuffled, 42, count);
    for (const int64_t epoch : {0, 1, 2, 1000000}) {
      std::vector<int64_t> samples = Epoch(order, epoch);
      std::sort(samples.begin(), samples.end());
      for (int64_t i = 0; i < count; ++i) ASSERT_EQ(samples[i], i) << count << " samples, epoch " << epoch;
    }
  }
}

// A table of 10^17 entries would not fit in any memory.
TEST(SampleOrderTest, OrdersMoreSamplesThanAnyMemoryHolds) {
  const int64_t count = 100'000'000'000'000'003;
  const SampleOrder order(DataOrder::kShuffled, 1, count);
  std::vector<int64_t> samples;
  for (int64_t p = 0; p < 1000; ++p) samples.push_back(order.At(p));
  std::sort(samples.begin(), samples.end());
  EXPECT_EQ(std::unique(samples.begin(), samples.end()), samples.end());
  EXPECT_GE(samples.front(), 0);
  EXPECT_LT(samples.back(), count);
  EXPECT_GT(samples.back(), count / 2);
  EXPECT_GE(order.At(std::numeric_limits<int64_t>::max()), 0);
}

// A run is repeatable only if the order never changes, not even between releases.
TEST(SampleOrderTest, NeverChanges) {
  const auto first = [](uint64_t seed, int64_t count, int64_t position) {
    const SampleOrder order(DataOrder::kShuffled, seed, count);
    std::vector<int64_t> samples;
    for (int i = 0; i < 6; ++i) samples.push_back(order.At(position + i));
    return samples;
  };
  EXPECT_THAT(first(1, 10, 0), ElementsAre(7, 2, 1, 6, 8, 9));
  EXPECT_THAT(first(1, 10, 10), ElementsAre(6, 1, 8, 5, 2, 3));
  EXPECT_THAT(first(2, 10, 0), ElementsAre(1, 2, 0, 5, 8, 4));
  EXPECT_THAT(first(0, 1000003, 0), ElementsAre(31091, 68736, 904324, 720322, 78528, 106501));
  EXPECT_THAT(first(1, int64_t{1} << 40, 7),
              ElementsAre(18072259310, 512721299832, 821734616879, 962118579313, 481822919270, 962609131687));
}

TEST(SampleOrderTest, SeedsAndEpochsDiffer) {
  const int64_t count = 1000;
  const auto places_equal = [](const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
    int equal = 0;
    for (size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i];
    return equal;
  };
  const SampleOrder one(DataOrder::kShuffled, 1, count);
  const SampleOrder two(DataOrder::kShuffled, 2, count);
  // Two random permutations have one place in common on average, 10 with a probability below 1e-6.
  EXPECT_LT(places_equal(Epoch(one, 0), Epoch(one, 1)), 10);
  EXPECT_LT(places_equal(Epoch(one, 1), Epoch(one, 2)), 10);
  EXPECT_LT(places_equal(Epoch(one, 0), Epoch(two, 0)), 10);
  EXPECT_LT(places_equal(Epoch(one, 1), Epoch(two, 0)), 10);
}

TEST(SampleOrderTest, AllOrdersOfAFewSamplesAreAboutEquallyLikely) {
  const int64_t epochs = 24000;
  const SampleOrder order(DataOrder::kShuffled, 7, 4);
  std::map<std::vector<int64_t>, int64_t> counts;
  for (int64_t epoch = 0; epoch < epochs; ++epoch) ++counts[Epoch(order, epoch)];
  EXPECT_EQ(counts.size(), 24);
  // Each of 24 orders is expected 1,000 times, with a standard deviation of 31.
  for (const auto& [samples, count] : counts) EXPECT_NEAR(count, 1000, 5 * 31);
}

TEST(SampleOrderTest, ASampleLandsAnywhere) {
  const int64_t count = 100;
  const int64_t epochs = 4000;
  const SampleOrder order(DataOrder::kShuffled, 3, count);
  std::vector<std::vector<int64_t>> at(count, std::vector<int64_t>(count, 0));
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    const std::vector<int64_t> samples = Epoch(order, epoch);
    for (int64_t i = 0; i < count; ++i) ++at[i][samples[i]];
  }
  // Each pair (place, sample) is expected 40 times. Chi-squared over the 10,000 pairs of a permutation has 99 x 99
  // degrees of freedom, so a mean of 9,801 and a standard deviation of 140.
  double chi_squared = 0;
  for (const auto& row : at) {
    for (const int64_t n : row) chi_squared += (n - 40.0) * (n - 40.0) / 40;
  }
  EXPECT_NEAR(chi_squared, 9801, 5 * 140);
}

TEST(SampleOrderTest, NeighboursDoNotStayTogether) {
  const int64_t count = 100000;
  const std::vector<int64_t> samples = Epoch(SampleOrder(DataOrder::kShuffled, 11, count), 0);
  int64_t rises = 0;
  int64_t adjacent = 0;
  for (int64_t i = 1; i < count; ++i) {
    rises += samples[i] > samples[i - 1];
    adjacent += std::abs(samples[i] - samples[i - 1]) == 1;
  }
  // Rises of a random permutation: mean (n - 1) / 2, variance (n + 1) / 12.
  EXPECT_NEAR(rises, (count - 1) / 2.0, 5 * std::sqrt((count + 1) / 12.0));
  EXPECT_LT(adjacent, 15);  // Two are expected.
}

}  // namespace
}  // namespace shale
