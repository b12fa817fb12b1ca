// Sums over the threads of a block. Include after portable.h.
#pragma once

#include "kernels/cuda/portable.h"

namespace shale::cuda {

// The same bits in each thread of a block of kBlockThreads in one row, whole warps. It holds a barrier; a kernel that
// sums more than once gives each sum a kPlace of its own in shared memory.
template <int kBlockThreads, int kPlace = 0>
SHALE_DEVICE double SumOverBlock(double sum) {
  static_assert(kBlockThreads % kWarpThreads == 0);
  SHALE_UNROLL
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  SHALE_SHARED_ARRAY(double, sum_of_warp, kBlockThreads / kWarpThreads);
  if (threadIdx.x % kWarpThreads == 0) sum_of_warp.Store(threadIdx.x / kWarpThreads, sum);
  __syncthreads();
  sum = 0;
  for (int w = 0; w < kBlockThreads / kWarpThreads; ++w) sum += sum_of_warp.Load(w);
  return sum;
}

}  // namespace shale::cuda
