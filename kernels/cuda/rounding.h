// Stores fp32 numbers in bf16, rounded stochastically.
#pragma once

#include <cstdint>

#include "kernels/counter_random.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/portable.h"

namespace shale::cuda {

// Stores N elements from element i of `to` on, where element i is element shard_begin + i of the group. One block of
// random bits serves a pack, since packs and shards begin at multiples of kRandomBlock.
template <int N>
SHALE_DEVICE void StoreRounded(const Global<BFloat16>& to, int64_t i, const Floats<N>& values,
                               const RoundingStream& stream, int64_t shard_begin) {
  static_assert(N == 1 || N == kRandomBlock);
  const int64_t element = shard_begin + i;
  const RandomBlock random = stream.At(element / kRandomBlock);
  Pack<BFloat16, N> pack;
  SHALE_UNROLL
  for (int k = 0; k < N; ++k) {
    const uint32_t half = random.Half(N == 1 ? element % kRandomBlock : k);
    pack.at[k] = {RoundStochastically(__float_as_uint(values.at[k]), half)};
  }
  to.template Store<N>(i, pack);
}

}  // namespace shale::cuda
