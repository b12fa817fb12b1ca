// Which sample comes when: a pure function of (seed, epoch, index), whatever ranks and micro-batches there are.
//
// T tokens hold N = floor((T - 1) / S) samples of S tokens: sample i has inputs [iS, iS + S) and targets one later.
// Training consumes positions p = 0, 1, 2, ...: epoch p / N, place p mod N. The position is all a checkpoint saves.
#pragma once

#include <cstdint>

namespace shale {

// Samples of `sequence_length` tokens that `tokens` tokens hold. 0 if not even one.
constexpr int64_t SampleCount(int64_t tokens, int64_t sequence_length) {
  return tokens <= 1 ? 0 : (tokens - 1) / sequence_length;
}

enum class SampleOrderKind {
  kShuffled,    // A permutation per (seed, epoch).
  kSequential,  // Place i is sample i in every epoch.
};

// A copyable value of constant size. Safe to read from any thread.
//
// The permutation is a Feistel network keyed by (seed, epoch) over the smallest even number of bits, at least 8, that
// can count to N. A network permutes its whole domain; to permute [0, N), a result >= N is put through again until it
// falls below ("cycle walking"), at most 4 times on average for N > 64. So no table is needed, and any place of any
// epoch is found at once. The order is part of what makes a run repeatable: it must never change (a test pins it).
class SampleOrder {
 public:
  // REQUIRES: sample_count >= 1.
  SampleOrder(SampleOrderKind kind, uint64_t seed, int64_t sample_count);

  int64_t sample_count() const { return sample_count_; }

  // The sample at a position. REQUIRES: position >= 0.
  int64_t At(int64_t position) const;

 private:
  SampleOrderKind kind_;
  uint64_t seed_;
  int64_t sample_count_;
  int half_bits_;  // The network works on two halves of this many bits.
};

}  // namespace shale
