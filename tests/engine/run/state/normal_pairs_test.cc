#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <random>
#include <vector>

#include "engine/run/state/fill_loops.h"

namespace shale {
namespace {

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// The values of a seed must not depend on the machine, nor change with the code: vector code returns what the C library
// returns.
TEST(NormalPairs, HaveTheBitsOfTheCLibraryWithEveryInstructionSet) {
  // The limits of logarithms and angles, and values next to them.
  std::vector<double> u = {1, 1 - 0x1p-53, std::sqrt(0.5), 0x1p-53, 0.5, 1, 0.75, 0.3, 0x1p-20, 0.9, 0.1, 0.2};
  std::vector<double> v = {1,     0.25,  0.5,  0.75, 0.125, 0x1p-53, 0.25 + 0x1p-52, 0.5 - 0x1p-50, 0.75 + 0x1p-40,
                           0.375, 0.625, 0.875};
  std::mt19937_64 random(1);
  while (u.size() < 300001) {
    for (std::vector<double>* values : {&u, &v}) {
      values->push_back((static_cast<double>(random() >> 11) + 1) * 0x1p-53);
    }
  }
  const double deviation = 0.02;
  std::vector<float> expected_cosines, expected_sines;
  for (size_t i = 0; i < u.size(); ++i) {
    const double scale = deviation * std::sqrt(-2.0 * std::log(u[i])), angle = 2.0 * std::numbers::pi * v[i];
    expected_cosines.push_back(static_cast<float>(scale * std::cos(angle)));
    expected_sines.push_back(static_cast<float>(scale * std::sin(angle)));
  }
  std::vector<float> cosines(u.size()), sines(u.size());
  for (const int lanes : {1, 4, 8}) {
    NormalPairs(deviation, u.data(), v.data(), static_cast<int64_t>(u.size()), cosines.data(), sines.data(), lanes);
    EXPECT_TRUE(SameBits(cosines, expected_cosines)) << lanes;
    EXPECT_TRUE(SameBits(sines, expected_sines)) << lanes;
  }
}

TEST(NormalPairs, UniformPairsAreThoseOfTheirCountersWithEveryInstructionSet) {
  for (const uint64_t key : {uint64_t{0}, uint64_t{0x8000000000000001}, ~uint64_t{0} - 5}) {
    for (const int64_t first : {int64_t{0}, int64_t{3}, int64_t{1} << 40}) {
      for (const int lanes : {1, 8}) {
        std::vector<double> u(37), v(37);
        UniformPairs(key, first, std::ssize(u), u.data(), v.data(), lanes);
        for (int64_t i = 0; i < std::ssize(u); ++i) {
          const uint64_t counter = key + 2 * static_cast<uint64_t>(first + i);
          EXPECT_EQ(u[i], UniformOf(MixCounter(counter))) << key << " " << first << " " << i;
          EXPECT_EQ(v[i], UniformOf(MixCounter(counter + 1))) << key << " " << first << " " << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace shale
