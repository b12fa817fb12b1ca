// Helpers for kernels that sum exponentials online (Milakov and Gimelshein, 2018).
#pragma once

#include <limits>

#include "kernels/cuda/portable.h"

namespace shale::cuda {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
// log2(e) and its inverse: kernels compute powers of 2.
inline constexpr float kLog2E = 1.44269504f, kLn2 = 0.693147181f;

// Returns the number to subtract from exponents, given the largest of them so far. It is 0 if all were -infinity, so
// that e^(-infinity - 0) is 0 rather than NaN.
SHALE_DEVICE float ShiftOf(float largest) { return largest == -kInfinity ? 0.0f : largest; }

// The largest of a row's exponents so far, and the sum of the powers whose exponents the calling thread owns, each
// divided by the power of the largest.
struct RunningSoftmax {
  float largest = -kInfinity;
  float sum = 0;
};

}  // namespace shale::cuda
