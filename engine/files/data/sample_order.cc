#include "engine/files/data/sample_order.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

#include "kernels/check.h"

namespace shale {
namespace {

// With fewer rounds, the permutations of small domains are visibly regular. Eight rounds cost about ten nanoseconds.
constexpr int kRounds = 8;
// With fewer bits in each half, the networks reach only a small part of all permutations.
constexpr int kMinHalfBits = 4;

// A bijection of 64-bit words in which every input bit affects every output bit (the finalizer of SplitMix64).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

constexpr uint64_t kGolden = 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio, the odd increment of SplitMix64.

std::array<uint64_t, kRounds> RoundKeys(uint64_t seed, uint64_t epoch) {
  uint64_t state = Mix(seed + kGolden) ^ Mix(epoch * kGolden + 1);
  std::array<uint64_t, kRounds> keys;
  for (uint64_t& key : keys) key = Mix(state += kGolden);
  return keys;
}

}  // namespace

SampleOrder::SampleOrder(DataOrder order, uint64_t seed, int64_t sample_count)
    : order_(order), seed_(seed), sample_count_(sample_count) {
  SHALE_CHECK(sample_count >= 1) << "an order of " << sample_count << " samples";
  const int bits = std::bit_width(static_cast<uint64_t>(sample_count - 1));
  half_bits_ = std::max(kMinHalfBits, (bits + 1) / 2);
}

int64_t SampleOrder::At(int64_t position) const {
  SHALE_CHECK(position >= 0) << "position " << position;
  const uint64_t count = static_cast<uint64_t>(sample_count_);
  const uint64_t place = static_cast<uint64_t>(position) % count;
  if (order_ == DataOrder::kSequential) return static_cast<int64_t>(place);

  const std::array<uint64_t, kRounds> keys = RoundKeys(seed_, static_cast<uint64_t>(position) / count);
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t value = place;
  do {
    uint64_t left = value >> half_bits_;
    uint64_t right = value & mask;
    for (const uint64_t key : keys) {
      left ^= Mix(right + key) & mask;
      std::swap(left, right);
    }
    value = left << half_bits_ | right;
  } while (value >= count);
  return static_cast<int64_t>(value);
}

}  // namespace shale
