// Pack: the unit of wide loads and stores in kernels, on the device and on the host.
#pragma once

#include "kernels/device/cuda/handles.h"

namespace shale::cuda {

// N elements that are read and written at once. A pack has up to 16 bytes and is aligned to its size, so that one
// instruction can access all of it.
template <class T, int N>
struct alignas(sizeof(T) * N) Pack {
  static_assert(sizeof(T) * N <= 16 && (N & (N - 1)) == 0);
  T at[N];
};

// The 16 bytes of a pack as words of 32 bits, for kernels that only copy it. nvcc takes a pack of 16-bit elements apart
// where it is loaded under a condition, and puts it together again where it is stored. It leaves words as they are.
using Words = Pack<unsigned, 4>;

}  // namespace shale::cuda
