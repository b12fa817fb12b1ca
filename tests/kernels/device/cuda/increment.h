// A kernel for tests of streams.
#pragma once

#include <cstdint>

#include "kernels/cuda/portable.h"
#include "kernels/integers.h"

namespace shale::cuda {

SHALE_KERNEL IncrementKernel(Global<int32_t> at_N, int64_t N) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < N) at_N.Store(i, at_N.Load(i) + 1);
}

// Adds one to each of N integers of device memory.
inline absl::Status Increment(void* at, int64_t N, StreamHandle stream) {
  constexpr int kThreads = 64;
  const LaunchShape shape = {.grid = dim3(CeilDivide(N, kThreads)), .block = dim3(kThreads)};
  return Launch("Increment", IncrementKernel, shape, stream, Global<int32_t>(static_cast<int32_t*>(at), N, "at"), N);
}

}  // namespace shale::cuda
