// Parallel loops over blocks. The callers are compiled for the baseline instruction set and call SIMD kernels block by
// block through Highway's dispatch, so that no OpenMP region lies inside code that is compiled for one instruction set.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/integers.h"

namespace shale::cpu {

// Calls body(begin, end) for [0, block), [block, 2 * block), ... up to `n`, on up to `threads` threads.
template <class Body>
void ParallelFor(int threads, int64_t n, int64_t block, const Body& body) {
  const int64_t blocks = CeilDivide(n, block);
  if (threads <= 1 || blocks <= 1) {
    for (int64_t begin = 0; begin < n; begin += block) body(begin, std::min(n, begin + block));
    return;
  }
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < blocks; ++i) body(i * block, std::min(n, (i + 1) * block));
}

// The division of n items (rows of a column sum, elements of a total) into blocks, each of which becomes a partial sum.
// PartitionOf makes at most `most` blocks of at least `least` items, whatever the number of threads.
struct Partition {
  int64_t n = 0;
  int64_t block = 1;
  int64_t blocks() const { return CeilDivide(n, block); }
};
inline Partition PartitionOf(int64_t n, int64_t least, int64_t most) {
  return {.n = n, .block = std::max(least, CeilDivide(n, most))};
}

// Returns the rows per block for a loop over independent rows of `row_elements` elements: about 32 KiB of fp32.
// Starting such a block takes much less time than running it, and the work is still well balanced over threads.
inline int64_t RowsPerBlock(int64_t row_elements) {
  return std::max<int64_t>(1, 8192 / std::max<int64_t>(1, row_elements));
}
inline constexpr int64_t kElementsPerBlock = 16384;

}  // namespace shale::cpu
