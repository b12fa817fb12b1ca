// TouchRows: reads memory ahead of its use. Private to kernels/cpu.
#pragma once

#include <cstdint>

namespace shale::cpu {

// Reads rows from end to end before they are processed in another order, so that memory streams them into the cache.
// Hardware prefetchers follow a few continuous streams, not many rows side by side, and prefetch instructions start no
// stream: packing b of a matmul is four times faster after this. The rows should fit into the L2 cache.
template <class T>
inline void TouchRows(const T* rows, int64_t stride, int64_t count, int64_t length) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t row = 0; row < count; ++row) {
    const volatile T* const elements = rows + row * stride;
    for (int64_t i = 0; i < length; i += kLine) (void)elements[i];
  }
}

}  // namespace shale::cpu
