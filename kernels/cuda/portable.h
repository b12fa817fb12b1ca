// The language of the CUDA kernels. nvcc compiles it as CUDA C++. g++ compiles it as plain C++ in which every CUDA
// thread is a fiber and every access is checked (see tests/kernels/cuda/host/README.md). Kernel sources live in
// namespace shale::cuda.
//
//   SHALE_KERNEL, SHALE_DEVICE          replace __global__ void, and __device__ __forceinline__
//   SHALE_BOUNDS(threads, blocks)       after SHALE_KERNEL, in every kernel: the most threads of a block, so that the
//                                       registers suffice on every GPU, and if wanted the blocks that an SM must hold
//   SHALE_UNROLL                        before a loop whose variable indexes registers
//   Global<T>, Shared<T>                arrays with Load(i), Store(i, v), Load<N>(i) and Store<N>(i, pack). On the
//                                       device these are bare loads and stores, one of up to 16 bytes for a pack
//   LoadWords(i), StoreWords(i, words)  of these arrays: access the pack of 16 bytes at element i as Words, see pack.h
//   BeginCopy(i, from, j, exists)       of Shared<T>: begins to copy the 16 bytes at element j of a Global<T> to its
//                                       element i (cp.async), or zeros if !exists, whatever j is. Nobody may access
//                                       them there before the thread has called WaitForCopies(), which it must before
//                                       it returns. Other threads also need a barrier
//   WaitForCopies()                     waits until all copies of the calling thread are done
//   SHALE_SHARED_ARRAY(T, name, size)   declares a static shared array
//   SHALE_DYNAMIC_SHARED(T, name)       names the dynamic shared memory of the launch
//   Widen(x), Narrow<T>(f)              convert between fp32 and a storage type (float, BFloat16, Float16)
//   Exp2(x)                             2^x to two units in the last place, or 0 where that is below 2^-126: one
//                                       instruction
//   LoadMatrices(shared, i, m)          a warp loads four 8 x 8 matrices of two-byte elements (ldmatrix). Lane 8 k + r
//                                       names the element at which row r of matrix k begins, a multiple of 16 bytes;
//                                       m[k] gets elements 2 (lane % 4) and the next of row lane / 4
//   LoadTransposed(shared, i, m)        does the same with the transposed matrices
//   MultiplyAdd<T>(a, b, c)             a warp adds the product of a 16 x 16 and a 16 x 8 matrix of T to a 16 x 8
//                                       matrix of fp32 (mma.sync). Registers hold 8 x 8 matrices as above: a those of
//                                       the upper left, lower left, upper right and lower right, b the upper and the
//                                       lower one, and c two elements each of the upper and the lower one
//   PairOf<T>(x, y)                     rounds two fp32 numbers to T and puts them into one word, x below
//   Float8PairOf<T>(x, y)               rounds two fp32 numbers to T, Float8E4M3 or Float8E5M2, with saturation, and
//                                       puts them into the lower half of a word, x below
//   GetSharedBytesOfSm(stream, bytes)   sets `bytes` to the shared memory of an SM, and returns an absl::Status
//   Launch(name, kernel, shape, stream, args...)   starts a kernel and returns an absl::Status
//
// The following have their CUDA meaning: threadIdx, blockIdx, blockDim, gridDim, __syncthreads, __syncwarp,
// __shfl_sync, __shfl_xor_sync, __shfl_down_sync, __ballot_sync, __any_sync, __float_as_uint, __uint_as_float, sqrtf,
// fmaf, fmaxf, fabsf, copysignf, expf, logf, erff, tanhf, __fdividef, sincospi, and in fp64 sqrt, exp, log, pow.
//
// On the host an array knows its size and name. On the device it is only a pointer.
#pragma once

#ifdef __CUDACC__
#include "kernels/cuda/device_language.h"
#else
#include SHALE_KERNEL_LANGUAGE  // The build names the header, tests/kernels/cuda/host/kernel_language.h.
#endif

namespace shale::cuda {

inline constexpr int kWarpThreads = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;

// Elements of T in one 16-byte access.
template <class T>
inline constexpr int kPackOf = 16 / static_cast<int>(sizeof(T));

}  // namespace shale::cuda
