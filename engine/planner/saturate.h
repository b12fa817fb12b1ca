// Sums and products of sizes that stop at the largest int64 instead of wrapping around.
#pragma once

#include <cstdint>
#include <limits>

namespace shale {

// REQUIRES of both: a and b are not negative.
inline int64_t SaturatedAdd(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

inline int64_t SaturatedMultiply(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<int64_t>::max() : product;
}

}  // namespace shale
