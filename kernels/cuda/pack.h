// What all arrays of kernels share, on the device and on the host.
#pragma once

#include "kernels/device/cuda/handles.h"

namespace shale::cuda {

// N elements that are read and written at once: aligned to their whole size, so that 16 bytes are one instruction.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  static_assert(sizeof(T) * N <= 16 && (N & (N - 1)) == 0);
  T at[N];
};

}  // namespace shale::cuda
