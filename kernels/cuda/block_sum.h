// SumOverBlock: sums over the threads of a block.
#pragma once

#include "kernels/cuda/portable.h"

namespace shale::cuda {

// Returns the sum over the threads of the block, with the same bits in every thread. All threads must call it, because
// it waits at a barrier. A kernel may call it once: a second call would use the same shared memory. REQUIRES: a
// one-dimensional block of kBlockThreads threads.
template <int kBlockThreads>
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
