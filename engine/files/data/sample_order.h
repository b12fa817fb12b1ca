// The order of samples: a pure function of (seed, epoch, index), independent of the number of ranks and micro-batches.
//
// T tokens hold N = floor((T - 1) / S) samples of S tokens: sample i has inputs [iS, iS + S) and targets one later.
// Training consumes positions p = 0, 1, 2, ...; position p is place p mod N of epoch p / N. A checkpoint saves only the
// position.
#pragma once

#include <cstdint>

#include "engine/files/data/data_enums.h"

namespace shale {

// Returns how many samples of `sequence_length` tokens there are in `tokens` tokens; may be 0.
// REQUIRES: sequence_length >= 1.
constexpr int64_t SampleCount(int64_t tokens, int64_t sequence_length) {
  return tokens <= 1 ? 0 : (tokens - 1) / sequence_length;
}

// A copyable value of constant size. Safe for concurrent use by multiple threads.
//
// The permutation is a Feistel network keyed by (seed, epoch) over the smallest even number of bits, at least 8, that
// can represent 0 to N - 1. The network permutes its full domain. To permute [0, N), it is applied repeatedly until the
// result is below N ("cycle walking"), at most 4 times on average for N > 64. So no table is needed, and the sample at
// any place of any epoch is computed directly. The order must never change, because repeatable runs depend on it (a
// test pins it).
class SampleOrder {
 public:
  // REQUIRES: sample_count >= 1.
  SampleOrder(DataOrder order, uint64_t seed, int64_t sample_count);

  int64_t sample_count() const { return sample_count_; }

  // Returns the sample at a position. REQUIRES: position >= 0.
  int64_t At(int64_t position) const;

 private:
  DataOrder order_;
  uint64_t seed_;
  int64_t sample_count_;
  int half_bits_;  // The network works on two halves of this many bits.
};

}  // namespace shale
