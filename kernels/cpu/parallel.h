// Parallel loops over blocks. The callers are compiled for the baseline instruction set and call SIMD kernels block by
// block through Highway's dispatch.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/team.h"
#include "kernels/integers.h"

namespace shale::cpu {

// Calls body(begin, end) or body(begin, end, thread) for [0, block), [block, 2 * block), ... up to `n`, on the threads
// of the team. Each thread has blocks that are neighbors.
template <class Body>
void ParallelFor(Team& team, int64_t n, int64_t block, const Body& body) {
  const int64_t blocks = CeilDivide(n, block);
  if (blocks <= 0) return;
  const int threads = static_cast<int>(std::min<int64_t>(team.threads(), blocks));
  team.Run(threads, [&](int thread) {
    for (int64_t i = blocks * thread / threads; i < blocks * (thread + 1) / threads; ++i) {
      if constexpr (std::is_invocable_v<Body, int64_t, int64_t, int>) {
        body(i * block, std::min(n, (i + 1) * block), thread);
      } else {
        body(i * block, std::min(n, (i + 1) * block));
      }
    }
  });
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
