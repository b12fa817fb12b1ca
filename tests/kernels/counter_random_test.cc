#include "kernels/counter_random.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>

namespace shale {
namespace {

// The known answers of Random123 1.14 (kat_vectors, philox4x32 10).
TEST(Philox, GivesTheKnownAnswers) {
  struct Case {
    RandomBlock counter;
    uint64_t key;
    RandomBlock want;
  };
  constexpr uint32_t kOnes = 0xffffffffu;
  for (const Case& c : {Case{{}, 0, {{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}}},
                        Case{{{kOnes, kOnes, kOnes, kOnes}},
                             0xffffffffffffffffu,
                             {{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}}},
                        Case{{{0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}},
                             0x299f31d0a4093822u,
                             {{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}}}}) {
    const RandomBlock got = Philox(c.counter, c.key);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(got.word[i], c.want.word[i]) << i;
  }
}

TEST(RandomBlock, HasTheHalvesOfItsWordsLowHalfFirst) {
  constexpr RandomBlock kBlock = {{0x00010000u, 0x00030002u, 0x00050004u, 0x00070006u}};
  for (uint32_t i = 0; i < kRandomBlock; ++i) EXPECT_EQ(kBlock.Half(i), i);
}

// Everything that a stream is made of changes its bits, also where numbers need more than 32 bits.
TEST(RoundingStream, DependsOnEachOfItsFields) {
  std::set<uint64_t> seen;
  const auto add = [&](const RoundingStream& stream, int64_t block) {
    const RandomBlock bits = stream.At(block);
    seen.insert(static_cast<uint64_t>(bits.word[0]) << 32 | bits.word[1]);
  };
  const RoundingStream stream = {.seed = 1, .number = 1, .group = 1, .tensor = 1};
  add(stream, 1);
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1} << 32})
    add({.seed = seed, .number = 1, .group = 1, .tensor = 1}, 1);
  add({.seed = 1, .number = 2, .group = 1, .tensor = 1}, 1);
  add({.seed = 1, .number = 1, .group = 2, .tensor = 1}, 1);
  add({.seed = 1, .number = 1, .group = 1, .tensor = 2}, 1);
  for (const int64_t block : {int64_t{0}, int64_t{2}, (int64_t{1} << 32) + 1}) add(stream, block);
  EXPECT_EQ(seen.size(), 9);
}

float Widened(uint16_t half) { return std::bit_cast<float>(static_cast<uint32_t>(half) << 16); }

// Of the 2^16 random values, as many round away from zero as the number lies 2^-16 steps above its lower neighbor. So
// the expected result is the number itself.
TEST(RoundStochastically, HasTheNumberAsItsExpectation) {
  for (const float x : {1.0f, 1.00001f, -1.00001f, 0.1f, -3e-39f, 1e-45f, 3.3e38f, 255.999f}) {
    const uint32_t bits = std::bit_cast<uint32_t>(x);
    uint32_t away = 0;
    for (uint32_t half = 0; half < 0x10000; ++half) {
      const uint16_t rounded = RoundStochastically(bits, half);
      away += rounded != bits >> 16;
      ASSERT_TRUE(rounded == bits >> 16 || rounded == (bits >> 16) + 1) << x;
    }
    EXPECT_EQ(away, bits & 0xffff) << x;
  }
}

TEST(RoundStochastically, KeepsWhatBf16HoldsAndNaNs) {
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    const uint32_t bits = upper << 16;
    for (const uint32_t half : {0u, 0x8000u, 0xffffu}) {
      const float x = std::bit_cast<float>(bits), rounded = Widened(RoundStochastically(bits, half));
      if (x != x) {
        EXPECT_NE(rounded, rounded);
      } else {
        EXPECT_EQ(rounded, x);
      }
    }
  }
  for (const uint32_t nan : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const float rounded = Widened(RoundStochastically(nan, 0xffff));
    EXPECT_NE(rounded, rounded);
  }
}

}  // namespace
}  // namespace shale
