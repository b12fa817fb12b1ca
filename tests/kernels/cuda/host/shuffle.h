// Shuffle: brings elements into a random order. Unlike std::shuffle, it takes no time to speak of beside a switch of
// threads, and gives the same order with every standard library.
#pragma once

#include <cstdint>
#include <utility>

namespace shale::cuda_on_host {

// Random numbers: SplitMix64 (Steele et al., 2014). Neighboring seeds give unrelated numbers.
class Random {
 public:
  explicit Random(uint64_t seed = 0) : state_(seed) {}

  // Returns a number in [0, end), each as likely as the others up to 2^-32 of `end`.
  uint32_t Below(uint32_t end) { return static_cast<uint32_t>((Next() >> 32) * end >> 32); }

 private:
  uint64_t Next() {
    uint64_t x = state_ += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
  }

  uint64_t state_;
};

template <class Iterator>
void Shuffle(Iterator begin, Iterator end, Random& random) {
  for (auto left = static_cast<uint32_t>(end - begin); left > 1; --left) {
    std::swap(begin[left - 1], begin[random.Below(left)]);
  }
}

}  // namespace shale::cuda_on_host
