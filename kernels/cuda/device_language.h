// The implementation of portable.h for nvcc.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/pack.h"
#include "kernels/dtype.h"
#include "kernels/float8.h"

#define SHALE_KERNEL __global__ void
#define SHALE_DEVICE __device__ __forceinline__
#define SHALE_BOUNDS(...) __launch_bounds__(__VA_ARGS__)
#define SHALE_UNROLL _Pragma("unroll")
// The array is aligned for packs. By default it would be aligned to its elements only.
#define SHALE_SHARED_ARRAY(T, name, size)        \
  alignas(16) __shared__ T name##_storage[size]; \
  const ::shale::cuda::Shared<T> name(name##_storage)
// All extern arrays of one name must have one type in a program, so the storage is raw bytes.
#define SHALE_DYNAMIC_SHARED(T, name)                                   \
  extern __shared__ __align__(16) unsigned char shale_dynamic_shared[]; \
  const ::shale::cuda::Shared<T> name(reinterpret_cast<T*>(shale_dynamic_shared))

namespace shale::cuda {

// Returns the 32 bits of a pack that begin at element i.
template <class T, int N>
SHALE_DEVICE unsigned WordOf(const Pack<T, N>& pack, int i) {
  if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
    return pack.at[i].bits | static_cast<unsigned>(pack.at[i + 1].bits) << 16;
  } else if constexpr (std::is_same_v<T, float>) {
    return __float_as_uint(pack.at[i]);
  } else if constexpr (sizeof(T) == 1) {
    static_assert(std::is_unsigned_v<T>);
    return static_cast<unsigned>(pack.at[i]) | static_cast<unsigned>(pack.at[i + 1]) << 8 |
           static_cast<unsigned>(pack.at[i + 2]) << 16 | static_cast<unsigned>(pack.at[i + 3]) << 24;
  } else if constexpr (sizeof(T) == 2) {
    static_assert(std::is_integral_v<T>);
    return static_cast<uint16_t>(pack.at[i]) | static_cast<unsigned>(static_cast<uint16_t>(pack.at[i + 1])) << 16;
  } else {
    static_assert(std::is_integral_v<T> && sizeof(T) == 4);
    return static_cast<unsigned>(pack.at[i]);
  }
}

template <class T>
class Array {
 public:
  __host__ __device__ explicit Array(T* data) : data_(data) {}

  SHALE_DEVICE T Load(int64_t i) const { return data_[i]; }
  template <class U>
  SHALE_DEVICE void Store(int64_t i, const U& value) const {
    data_[i] = value;
  }

  template <int N>
  SHALE_DEVICE Pack<std::remove_const_t<T>, N> Load(int64_t i) const {
    return *reinterpret_cast<const Pack<std::remove_const_t<T>, N>*>(data_ + i);
  }
  template <int N>
  SHALE_DEVICE void Store(int64_t i, const Pack<std::remove_const_t<T>, N>& pack) const {
    *reinterpret_cast<Pack<T, N>*>(data_ + i) = pack;
  }

  SHALE_DEVICE Words LoadWords(int64_t i) const {
    const uint4 words = *reinterpret_cast<const uint4*>(data_ + i);
    return {words.x, words.y, words.z, words.w};
  }
  SHALE_DEVICE void StoreWords(int64_t i, const Words& words) const {
    *reinterpret_cast<uint4*>(data_ + i) = make_uint4(words.at[0], words.at[1], words.at[2], words.at[3]);
  }

  __host__ __device__ bool present() const { return data_ != nullptr; }

 protected:
  T* data_;
};

template <class T>
class Global : public Array<T> {
 public:
  Global(T* data, int64_t size, const char* name) : Array<T>(data) {}

  SHALE_DEVICE const T* Address(int64_t i) const { return this->data_ + i; }

  using Array<T>::Store;

  // nvcc stores some packs element by element if they are copied as structs. __stwb is an ordinary store in one
  // instruction.
  template <int N>
  SHALE_DEVICE void Store(int64_t i, const Pack<std::remove_const_t<T>, N>& pack) const {
    constexpr int kPerWord = 4 / static_cast<int>(sizeof(T));
    if constexpr (sizeof(pack) == 16) {
      __stwb(
          reinterpret_cast<uint4*>(this->data_ + i),
          make_uint4(WordOf(pack, 0), WordOf(pack, kPerWord), WordOf(pack, 2 * kPerWord), WordOf(pack, 3 * kPerWord)));
    } else if constexpr (sizeof(pack) == 8) {
      __stwb(reinterpret_cast<uint2*>(this->data_ + i), make_uint2(WordOf(pack, 0), WordOf(pack, kPerWord)));
    } else {
      *reinterpret_cast<Pack<T, N>*>(this->data_ + i) = pack;
    }
  }
};

template <class T>
class Shared : public Array<T> {
 public:
  __device__ explicit Shared(T* data) : Array<T>(data) {}

  // The address of an element for instructions that name shared memory.
  SHALE_DEVICE unsigned Address(int i) const {
    return static_cast<unsigned>(__cvta_generic_to_shared(this->data_ + i));
  }

  SHALE_DEVICE void BeginCopy(int i, const Global<T>& from, int64_t j, bool exists) const {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(Address(i)), "l"(__cvta_generic_to_global(from.Address(j))), "r"(exists ? 16 : 0)
                 : "memory");
  }
};

SHALE_DEVICE void WaitForCopies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

template <class T>
SHALE_DEVICE void LoadMatrices(const Shared<T>& from, int i, unsigned (&m)[4]) {
  static_assert(sizeof(T) == 2);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(from.Address(i))
               : "memory");
}
template <class T>
SHALE_DEVICE void LoadTransposed(const Shared<T>& from, int i, unsigned (&m)[4]) {
  static_assert(sizeof(T) == 2);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
               : "r"(from.Address(i))
               : "memory");
}

template <class T>
SHALE_DEVICE void MultiplyAdd(const unsigned (&a)[4], const unsigned (&b)[2], float (&c)[4]) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    static_assert(std::is_same_v<T, Float16>);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

SHALE_DEVICE float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

SHALE_DEVICE float Widen(float x) { return x; }
SHALE_DEVICE float Widen(BFloat16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
SHALE_DEVICE float Widen(Float16 x) { return __half2float(__ushort_as_half(x.bits)); }

// Rounds to nearest, ties to even.
template <class T>
SHALE_DEVICE T Narrow(float x) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return x;
  } else if constexpr (std::is_same_v<T, Float16>) {
    return {__half_as_ushort(__float2half_rn(x))};
  } else {
    return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
  }
}

template <class T>
SHALE_DEVICE unsigned PairOf(float x, float y) {
  unsigned word;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(y), "f"(x));
  } else {
    static_assert(std::is_same_v<T, Float16>);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(y), "f"(x));
  }
  return word;
}

template <class T>
SHALE_DEVICE unsigned Float8PairOf(float x, float y) {
  // ptxas refuses the instruction for older GPUs. They multiply no fp8 matrices, but can make them.
#if __CUDA_ARCH__ >= 890
  uint16_t pair;
  if constexpr (std::is_same_v<T, Float8E4M3>) {
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(y), "f"(x));
  } else {
    static_assert(std::is_same_v<T, Float8E5M2>);
    asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(y), "f"(x));
  }
  return pair;
#else
  return SaturateToFloat8<T>(x).bits | static_cast<unsigned>(SaturateToFloat8<T>(y).bits) << 8;
#endif
}

// Sets `bytes` to the shared memory of an SM of the calling thread's current device, on which `stream` is.
inline absl::Status GetSharedBytesOfSm(StreamHandle stream, int64_t& bytes) {
  int device = 0, found = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&found, cudaDevAttrMaxSharedMemoryPerMultiprocessor, device);
  }
  if (error != cudaSuccess) {
    (void)cudaGetLastError();  // Clears the error, as in Launch.
    return absl::InternalError(absl::StrCat("shared memory of the GPU: ", cudaGetErrorString(error)));
  }
  bytes = found;
  return absl::OkStatus();
}

struct LaunchShape {
  dim3 grid, block;
  size_t shared_bytes = 0;  // Dynamic shared memory.
};

// Starts a kernel. Returns the error of the launch only. An error of the running kernel shows at the stream's next
// synchronization.
template <class... Params, class... Args>
absl::Status Launch(const char* name, void (*kernel)(Params...), const LaunchShape& shape, StreamHandle stream,
                    Args&&... args) {
  constexpr size_t kWithoutAsking = 48 << 10;
  cudaError_t error = cudaSuccess;
  if (shape.shared_bytes > kWithoutAsking) {
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shape.shared_bytes));
  }
  if (error == cudaSuccess) {
    cudaLaunchConfig_t config = {};
    config.gridDim = shape.grid;
    config.blockDim = shape.block;
    config.dynamicSmemBytes = shape.shared_bytes;
    config.stream = static_cast<cudaStream_t>(stream);
    error = cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...);
  }
  if (error == cudaSuccess) return absl::OkStatus();
  (void)cudaGetLastError();  // Clears the error, as it is reported here: a later check must not find it again.
  return absl::InternalError(absl::StrCat(name, ": launch of ", shape.grid.x, " x ", shape.grid.y, " x ", shape.grid.z,
                                          " blocks of ", shape.block.x, " x ", shape.block.y, " x ", shape.block.z,
                                          " threads with ", shape.shared_bytes,
                                          " bytes of shared memory: ", cudaGetErrorString(error)));
}

}  // namespace shale::cuda
