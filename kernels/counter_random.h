// Random numbers for stochastic rounding to bf16. They are a function of a key and a counter, so they do not depend on
// how elements are divided among ranks, threads and launches.
//
// The generator is Philox 4x32-10 (Salmon et al., 2011), which makes a block of 128 random bits from a counter of 128
// bits and a key of 64. A block rounds kRandomBlock adjacent elements. All functions are constexpr, so that both host
// code and kernels can call them.
#pragma once

#include <cstdint>

namespace shale {

// Elements that one block of random bits rounds.
inline constexpr int64_t kRandomBlock = 8;

struct RandomBlock {
  uint32_t word[4] = {};

  // Returns the 16 bits that belong to element i of the block.
  constexpr uint32_t Half(int64_t i) const {
    const uint32_t of_pair = i < 4 ? (i < 2 ? word[0] : word[1]) : (i < 6 ? word[2] : word[3]);
    return of_pair >> (i % 2 * 16) & 0xffff;
  }
};

inline constexpr int kPhiloxRounds = 10;
// The factors of the two products of a round, and what a round adds to the two words of the key.
inline constexpr uint32_t kPhiloxFactor0 = 0xd2511f53u, kPhiloxFactor1 = 0xcd9e8d57u;
inline constexpr uint32_t kPhiloxKeyStep0 = 0x9e3779b9u, kPhiloxKeyStep1 = 0xbb67ae85u;

constexpr RandomBlock Philox(RandomBlock counter, uint64_t key) {
  uint32_t key0 = static_cast<uint32_t>(key), key1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = counter.word[0], c1 = counter.word[1], c2 = counter.word[2], c3 = counter.word[3];
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t product0 = uint64_t{kPhiloxFactor0} * c0, product1 = uint64_t{kPhiloxFactor1} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(product0);
    key0 += kPhiloxKeyStep0;
    key1 += kPhiloxKeyStep1;
  }
  return {{c0, c1, c2, c3}};
}

// The streams of the tensors of a flat group. A state's number is below kGradientStreams - 1.
inline constexpr uint32_t kWeightStream = 0;
constexpr uint32_t StateStream(int state) { return 1 + static_cast<uint32_t>(state); }
// A bf16 gradient has kGradientStreams streams, one for each rounding in a micro-batch, so that no two roundings of an
// element use the same bits: with equal bits, the expectation of their sum would not be exact.
inline constexpr uint32_t kGradientStreams = 128;
inline constexpr int kMostSentGradients = kGradientStreams / 2;  // Roundings of what is sent, in a micro-batch.
constexpr uint32_t GradientStream(int rounding) { return kGradientStreams + static_cast<uint32_t>(rounding); }
// The second half of them round what ranks send one another.
constexpr uint32_t SentGradientStream(int rounding) { return GradientStream(kMostSentGradients + rounding); }

// The random bits of one tensor in one update or, for gradients, in one micro-batch of it.
struct RoundingStream {
  uint64_t seed = 0;
  int64_t number = 0;       // Of the update. Streams repeat after 2^32 updates.
  int32_t group = 0;        // The flat group.
  uint32_t tensor = 0;      // kWeightStream, the StateStream of a state, or a GradientStream.
  int64_t micro_batch = 0;  // Its number in the step. Only gradients have other numbers than 0.

  // Returns the counter of block 0.
  constexpr RandomBlock Origin() const {
    return {{0, tensor << 24, static_cast<uint32_t>(group), static_cast<uint32_t>(number)}};
  }
  // Returns the bits for elements [kRandomBlock * block, kRandomBlock * (block + 1)) of the group.
  constexpr RandomBlock At(int64_t block) const {
    RandomBlock counter = Origin();
    counter.word[0] = static_cast<uint32_t>(block);
    counter.word[1] |= static_cast<uint32_t>(block >> 32);
    return Philox(counter, Key());
  }
  constexpr uint64_t Key() const { return seed ^ static_cast<uint64_t>(micro_batch) << 32; }
};

// Rounds the fp32 number with these bits to one of the two bf16 numbers around it, and returns its 16 bits. If `half`
// is uniform in [0, 2^16), the expected result is the number itself. Keeps infinities and numbers that bf16 holds,
// and returns a quiet NaN for a NaN.
constexpr uint16_t RoundStochastically(uint32_t bits, uint32_t half) {
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<uint16_t>(is_nan ? bits >> 16 | 0x40 : (bits + half) >> 16);
}

}  // namespace shale
