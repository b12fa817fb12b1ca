// What kernels that sum exponentials online share (Milakov and Gimelshein, 2018). Include after portable.h.
#pragma once

#include <limits>

#include "kernels/cuda/portable.h"

namespace shale::cuda {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

// What exponents are taken relative to, `largest` being the largest of them so far. Where nothing but -infinity was
// seen, that is 0: e^(-infinity - 0) is 0.
SHALE_DEVICE float ShiftOf(float largest) { return largest == -kInfinity ? 0.0f : largest; }

}  // namespace shale::cuda
