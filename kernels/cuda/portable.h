// The language that our kernels are written in: CUDA C++ where nvcc compiles them, and where g++ does, plain C++ in
// which every CUDA thread is a fiber and every access is checked (see kernels/cuda/host/README.md). A kernel source
// includes this first, and lives in namespace shale::cuda.
//
//   SHALE_KERNEL, SHALE_DEVICE          instead of __global__, __device__ __forceinline__
//   SHALE_BOUNDS(threads, blocks)       after SHALE_KERNEL: the block's size, and blocks that an SM must be able to
//   hold SHALE_UNROLL                        before a loop whose variable indexes registers Global<T>, Shared<T>
//   arrays: Load(i), Store(i, v), Load<N>(i), Store<N>(i, pack); bare loads and
//                                       stores on the device, one of up to 16 bytes for a pack
//   SHALE_SHARED_ARRAY(T, name, size)   a static shared array; SHALE_DYNAMIC_SHARED(T, name) the launch's
//   Widen(x), Narrow<T>(f)              between fp32 and a storage type (float, BFloat16)
//   Launch(name, kernel, shape, stream, args...)  -> absl::Status
//
// and, with their CUDA meaning: threadIdx, blockIdx, blockDim, gridDim, __syncthreads, __syncwarp, __shfl_sync,
// __shfl_xor_sync, __shfl_down_sync, __ballot_sync, __any_sync, __float_as_uint, __uint_as_float, sqrtf, fmaf, fmaxf,
// fabsf, copysignf, expf, logf, erff, __fdividef, sincospi, and of fp64 sqrt, exp, log, pow.
//
// Every array knows its size and name on the host, and is no more than its pointer on the device.
#pragma once

#ifdef __CUDACC__
#include "kernels/cuda/device_language.h"
#else
#include "kernels/cuda/host/kernel_language.h"
#endif

namespace shale::cuda {

inline constexpr int kWarpThreads = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Elements of T in one 16-byte access.
template <class T>
inline constexpr int kPackOf = 16 / static_cast<int>(sizeof(T));

}  // namespace shale::cuda
