// Helpers for kernels over flat vectors. They assign elements to threads, and load and store elements as fp32.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "kernels/cuda/portable.h"
#include "kernels/integers.h"
#include "kernels/tensor.h"

namespace shale::cuda {

inline constexpr int kFlatThreads = 256;
// Elements per thread. A thread requests all of them before it waits for any.
inline constexpr int kFlatElements = 16;

// Returns the launch shape of a kernel that calls ForEachFlatPiece(n, ...). REQUIRES: n > 0
inline LaunchShape FlatShape(int64_t n) {
  constexpr int64_t kBlock = kFlatThreads * kFlatElements;
  return {.grid = dim3(static_cast<unsigned>(CeilDivide(n, kBlock))), .block = dim3(kFlatThreads)};
}

// Calls compute(Width, i) and then store(Width, i, result) for the pieces [i, i + Width::value) of n elements that
// belong to this thread. Pieces are packs of N, adjacent ones on adjacent threads, and single elements at the end of
// the vector. A thread computes all of its packs before it stores the first, unless some of them lie past the end.
template <int N, class Compute, class Store>
SHALE_DEVICE void ForEachFlatPiece(int64_t n, const Compute& compute, const Store& store) {
  using Width = std::integral_constant<int, N>;
  using One = std::integral_constant<int, 1>;
  constexpr int kPacks = kFlatElements / N;
  const int64_t packs = n / N, first = static_cast<int64_t>(blockIdx.x) * (kFlatThreads * kPacks) + threadIdx.x;
  if (first + (kPacks - 1) * kFlatThreads < packs) {
    decltype(compute(Width(), first)) results[kPacks];
    SHALE_UNROLL
    for (int k = 0; k < kPacks; ++k) results[k] = compute(Width(), (first + k * kFlatThreads) * N);
    SHALE_UNROLL
    for (int k = 0; k < kPacks; ++k) store(Width(), (first + k * kFlatThreads) * N, results[k]);
  } else {
    for (int64_t pack = first; pack < packs; pack += kFlatThreads) {
      store(Width(), pack * N, compute(Width(), pack * N));
    }
  }
  if constexpr (N > 1) {
    const int64_t i = packs * N + threadIdx.x;
    if (blockIdx.x + 1 == gridDim.x && i < n) store(One(), i, compute(One(), i));
  }
}

template <int N>
struct Floats {
  float at[N];
};

// LoadFloats and StoreFloats load and store N elements of any storage type as fp32, in accesses of up to 16 bytes.
template <int N, class T>
SHALE_DEVICE Floats<N> LoadFloats(const Global<T>& from, int64_t i) {
  constexpr int kPack = N < kPackOf<T> ? N : kPackOf<T>;
  Floats<N> floats;
  SHALE_UNROLL
  for (int begin = 0; begin < N; begin += kPack) {
    const Pack<T, kPack> pack = from.template Load<kPack>(i + begin);
    SHALE_UNROLL
    for (int k = 0; k < kPack; ++k) floats.at[begin + k] = Widen(pack.at[k]);
  }
  return floats;
}
template <int N, class T>
SHALE_DEVICE void StoreFloats(const Global<T>& to, int64_t i, const Floats<N>& floats) {
  constexpr int kPack = N < kPackOf<T> ? N : kPackOf<T>;
  SHALE_UNROLL
  for (int begin = 0; begin < N; begin += kPack) {
    Pack<T, kPack> pack;
    SHALE_UNROLL
    for (int k = 0; k < kPack; ++k) pack.at[k] = Narrow<T>(floats.at[begin + k]);
    to.template Store<kPack>(i + begin, pack);
  }
}

// Returns whether packs of 16 bytes may be read from the beginning of a contiguous tensor. True for an absent tensor.
inline bool Aligned16(const Tensor& t) { return !t.present() || reinterpret_cast<uintptr_t>(t.data) % 16 == 0; }

// Calls start(Width) with the number of elements in a pack: kPack if `aligned`, else 1.
template <int kPack, class Start>
absl::Status WithWidth(bool aligned, const Start& start) {
  return aligned ? start(std::integral_constant<int, kPack>()) : start(std::integral_constant<int, 1>());
}

}  // namespace shale::cuda
