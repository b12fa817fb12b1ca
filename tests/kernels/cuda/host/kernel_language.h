// The implementation of portable.h for g++: the parts of CUDA's language that our kernels use. They are declared in the
// kernels' namespace, so that they do not clash with names of the CUDA toolkit, which this header does not need.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "kernels/cuda/pack.h"
#include "kernels/dtype.h"
#include "kernels/float8.h"
#include "tests/kernels/cuda/host/execution.h"
#include "tests/kernels/cuda/host/host_view.h"

#define SHALE_KERNEL void
#define SHALE_DEVICE inline
#define SHALE_BOUNDS(...)
#define SHALE_UNROLL
// The address of `name##_key` identifies the array. There is one array per declaration and instantiation, as on the
// device.
#define SHALE_SHARED_ARRAY(T, name, size) \
  static const char name##_key = 0;       \
  const ::shale::cuda::Shared<T> name(    \
      ::shale::cuda_on_host::Execution::Running().StaticShared(&name##_key, #name, sizeof(T) * (size)), size, #name)
#define SHALE_DYNAMIC_SHARED(T, name)                                                                                 \
  const ::shale::cuda::Shared<T> name(::shale::cuda_on_host::Execution::Running().DynamicShared(),                    \
                                      ::shale::cuda_on_host::Execution::Running().dynamic_shared_bytes() / sizeof(T), \
                                      #name)

namespace shale::cuda {

using dim3 = cuda_on_host::Dim3;

using SourceLocation = std::source_location;

inline cuda_on_host::Site SiteOf(const SourceLocation& at) { return {at.file_name(), at.line()}; }

inline void __syncthreads(SourceLocation at = SourceLocation::current()) {
  cuda_on_host::Execution::Running().BlockBarrier(SiteOf(at));
}

inline void __syncwarp(unsigned mask = 0xffffffffu, SourceLocation at = SourceLocation::current()) {
  cuda_on_host::Execution::Running().WarpWide(
      {.kind = cuda_on_host::WarpKind::kBarrier, .mask = mask, .site = SiteOf(at)});
}

// Returns the lane of the calling thread in its warp.
inline int Lane() {
  return static_cast<int>((threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % cuda_on_host::kWarp);
}

template <class T>
T ShuffleFrom(unsigned mask, const T& value, int source_lane, const SourceLocation& at) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t));
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = cuda_on_host::Execution::Running().WarpWide({.kind = cuda_on_host::WarpKind::kShuffle,
                                                      .mask = mask,
                                                      .value = bits,
                                                      .source_lane = source_lane,
                                                      .site = SiteOf(at)});
  T result;
  std::memcpy(&result, &bits, sizeof(T));
  return result;
}

// A warp is divided into segments of `width` lanes. A lane whose source lies outside its segment gets its own value.
template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32, SourceLocation at = SourceLocation::current()) {
  return ShuffleFrom(mask, value, Lane() / width * width + (source & (width - 1)), at);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32, SourceLocation at = SourceLocation::current()) {
  const int source = Lane() ^ lanes;
  return ShuffleFrom(mask, value, source < (Lane() / width + 1) * width ? source : Lane(), at);
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                   SourceLocation at = SourceLocation::current()) {
  const int source = Lane() + static_cast<int>(delta);
  return ShuffleFrom(mask, value, source < (Lane() / width + 1) * width ? source : Lane(), at);
}

inline unsigned __ballot_sync(unsigned mask, int predicate, SourceLocation at = SourceLocation::current()) {
  return static_cast<unsigned>(cuda_on_host::Execution::Running().WarpWide(
      {.kind = cuda_on_host::WarpKind::kBallot, .mask = mask, .value = predicate != 0, .site = SiteOf(at)}));
}
inline int __any_sync(unsigned mask, int predicate, SourceLocation at = SourceLocation::current()) {
  return __ballot_sync(mask, predicate, at) != 0;
}

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float Exp2(float x) { return x < -126 ? 0.0f : exp2f(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline void sincospi(double x, double* sine, double* cosine) {
  const double angle = std::remainder(x, 2.0) * std::numbers::pi;
  *sine = std::sin(angle);
  *cosine = std::cos(angle);
}
using ::copysignf;
using ::erff;
using ::exp;
using ::exp2f;
using ::expf;
using ::fabsf;
using ::fmaf;
using ::fmaxf;
using ::log;
using ::logf;
using ::pow;
using ::sqrt;
using ::sqrtf;

// An array of which every access is checked (Execution::Check). Does not own the memory.
template <class T>
class Array {
 public:
  using Value = std::remove_const_t<T>;

  Array(T* data, int64_t size, const char* name, bool shared)
      : data_(data), size_(size), name_(name), shared_(shared) {}

  // The loads and stores are not inlined: a kernel has hundreds of them, and a build with a sanitizer would take
  // minutes to compile them inline.
  [[gnu::noinline]] Value Load(int64_t i) const {
    Check(i, 1, false);
    return data_[i];
  }
  template <class U>
  [[gnu::noinline]] void Store(int64_t i, const U& value) const {
    Check(i, 1, true);
    data_[i] = value;
  }

  template <int N>
  [[gnu::noinline]] Pack<Value, N> Load(int64_t i) const {
    Check(i, N, false);
    Pack<Value, N> pack;
    for (int k = 0; k < N; ++k) pack.at[k] = data_[i + k];
    return pack;
  }
  template <int N>
  [[gnu::noinline]] void Store(int64_t i, const Pack<Value, N>& pack) const {
    Check(i, N, true);
    for (int k = 0; k < N; ++k) data_[i + k] = pack.at[k];
  }

  Words LoadWords(int64_t i) const { return std::bit_cast<Words>(Load<kPerPack>(i)); }
  void StoreWords(int64_t i, const Words& words) const { Store(i, std::bit_cast<Pack<Value, kPerPack>>(words)); }

  bool present() const { return data_ != nullptr; }

  // Describes an access to `count` elements.
  cuda_on_host::Access AccessTo(int64_t i, int64_t count, bool write) const {
    return {.array = name_,
            .shared = shared_,
            .write = write,
            .index = i,
            .count = count,
            .size = size_,
            .data = data_,
            .element_bytes = sizeof(T)};
  }

 private:
  static constexpr int kPerPack = 16 / static_cast<int>(sizeof(T));

  void Check(int64_t i, int64_t count, bool write) const {
    cuda_on_host::Execution::Running().Check(AccessTo(i, count, write));
  }

  T* data_;
  int64_t size_;
  const char* name_;
  bool shared_;
};

// An array in global memory: `size` elements from `data`, gaps between rows included. `data` is null when an optional
// operand is absent.
template <class T>
class Global : public Array<T> {
 public:
  Global(T* data, int64_t size, const char* name)
      : Array<T>(cuda_on_host::HostViewOf(data), size, name, /*shared=*/false) {}
};

// An array in shared memory.
template <class T>
class Shared : public Array<T> {
 public:
  static_assert(sizeof(T) % cuda_on_host::kCellBytes == 0, "a cell of shared memory is two bytes");
  Shared(void* data, int64_t size, const char* name) : Array<T>(static_cast<T*>(data), size, name, /*shared=*/true) {}

  void BeginCopy(int64_t i, const Global<T>& from, int64_t j, bool exists) const {
    constexpr int kCount = 16 / static_cast<int>(sizeof(T));
    cuda_on_host::Execution::Running().BeginCopy(this->AccessTo(i, kCount, /*write=*/true),
                                                 from.AccessTo(j, kCount, /*write=*/false), /*zeros=*/!exists);
  }
};

inline void WaitForCopies(SourceLocation at = SourceLocation::current()) {
  cuda_on_host::Execution::Running().WaitForCopies(SiteOf(at));
}

// Calls use(lanes) in each lane of a warp, where lanes[l] is what lane l has given. All lanes must come to it. It
// orders memory no more than a shuffle does.
template <class Given, class Use>
void WithAllLanes(const Given& given, const SourceLocation& at, const Use& use) {
  constexpr unsigned kMostThreads = 1024;
  static thread_local Given lanes[kMostThreads];
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const auto meet = [&] {
    cuda_on_host::Execution::Running().WarpWide({.kind = cuda_on_host::WarpKind::kShuffle,
                                                 .mask = 0xffffffffu,
                                                 .source_lane = Lane(),
                                                 .site = SiteOf(at),
                                                 .counts = false});
  };
  lanes[thread] = given;
  meet();
  use(lanes + (thread - Lane()));
  meet();  // Nobody gives anything else before all have used it.
}

template <class T>
unsigned WordOf(T low, T high) {
  static_assert(sizeof(T) == 2);
  return std::bit_cast<uint16_t>(low) | static_cast<unsigned>(std::bit_cast<uint16_t>(high)) << 16;
}

template <class T>
void LoadMatrices(const Shared<T>& from, int i, unsigned (&m)[4], SourceLocation at = SourceLocation::current()) {
  WithAllLanes(from.template Load<8>(i), at, [&](const Pack<T, 8>* rows) {
    const int row = Lane() / 4, column = Lane() % 4 * 2;
    for (int k = 0; k < 4; ++k) m[k] = WordOf(rows[8 * k + row].at[column], rows[8 * k + row].at[column + 1]);
  });
}
template <class T>
void LoadTransposed(const Shared<T>& from, int i, unsigned (&m)[4], SourceLocation at = SourceLocation::current()) {
  WithAllLanes(from.template Load<8>(i), at, [&](const Pack<T, 8>* rows) {
    const int row = Lane() % 4 * 2, column = Lane() / 4;
    for (int k = 0; k < 4; ++k) m[k] = WordOf(rows[8 * k + row].at[column], rows[8 * k + row + 1].at[column]);
  });
}

// Each lane widens what it holds of the two matrices, once for all that read it.
template <class T>
void MultiplyAdd(const unsigned (&a)[4], const unsigned (&b)[2], float (&c)[4],
                 SourceLocation at = SourceLocation::current()) {
  struct Operands {
    float a[4][2], b[2][2];
  };
  const auto element = [](unsigned word, int i) {
    return ToFloat(std::bit_cast<T>(static_cast<uint16_t>(word >> (16 * i))));
  };
  Operands given;
  for (int i = 0; i < 2; ++i) {
    for (int word = 0; word < 4; ++word) given.a[word][i] = element(a[word], i);
    for (int word = 0; word < 2; ++word) given.b[word][i] = element(b[word], i);
  }
  WithAllLanes(given, at, [&](const Operands* lanes) {
    // The first lanes of the row and of both columns that this lane sums up.
    const Operands *row = lanes + Lane() / 4 * 4, *columns[2] = {lanes + Lane() % 4 * 8, lanes + Lane() % 4 * 8 + 4};
    float sums[4] = {c[0], c[1], c[2], c[3]};
    for (int k = 0; k < 16; ++k) {
      const int lane = k / 2 % 4, half = k / 8;
      for (int e = 0; e < 4; ++e) {
        sums[e] += row[lane].a[2 * half + e / 2][k % 2] * columns[e % 2][lane].b[half][k % 2];
      }
    }
    std::memcpy(c, sums, sizeof(sums));
    cuda_on_host::Execution::Running().CountMultiplyAdds(4 * 16);
  });
}

inline float Widen(float x) { return x; }
inline float Widen(BFloat16 x) { return ToFloat(x); }
inline float Widen(Float16 x) { return ToFloat(x); }
template <class T>
T Narrow(float x) {
  return RoundTo<T>(x);
}

template <class T>
unsigned PairOf(float x, float y) {
  return WordOf(Narrow<T>(x), Narrow<T>(y));
}

template <class T>
unsigned Float8PairOf(float x, float y) {
  return SaturateToFloat8<T>(x).bits | static_cast<unsigned>(SaturateToFloat8<T>(y).bits) << 8;
}

using LaunchShape = cuda_on_host::Shape;

inline absl::Status GetSharedBytesOfSm(StreamHandle stream, int64_t& bytes) {
  const auto* host_stream = static_cast<const cuda_on_host::Stream*>(stream);
  bytes = static_cast<int64_t>((host_stream != nullptr ? *host_stream : cuda_on_host::Stream()).sm_shared_bytes);
  return absl::OkStatus();
}

// Launches a kernel: gives it to the stream if that has `submit`, else runs it to its end on the calling thread. The
// stream's seed determines the order of blocks and threads. Arguments are copied, as for a GPU.
template <class... Params, class... Args>
absl::Status Launch(const char* name, void (*kernel)(Params...), const LaunchShape& shape, StreamHandle stream,
                    Args&&... args) {
  static_assert((std::is_trivially_copyable_v<Params> && ...));
  auto* host_stream = static_cast<cuda_on_host::Stream*>(stream);
  auto run = [=, arguments = std::tuple<Params...>(std::forward<Args>(args)...)] {
    return cuda_on_host::Execution::OfThisThread().Run(name, shape, host_stream,
                                                       [&] { std::apply(kernel, arguments); });
  };
  return host_stream != nullptr && host_stream->submit ? host_stream->submit(std::move(run)) : run();
}

}  // namespace shale::cuda
