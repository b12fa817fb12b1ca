#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/packed_kernels.cc"
#include "kernels/cpu/packed_kernels.h"

#include <algorithm>
#include <type_traits>

#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/accumulators-inl.h"
#include "kernels/cpu/float8-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/integers.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// Two vectors of b and one of a leave 29 of AVX-512's 32 registers for sums, and 13 of 16 elsewhere.
constexpr int64_t kStripRows = HWY_MAX_BYTES >= 64 ? 12 : 6;
constexpr int64_t kStripColumns = 2 * hn::MaxLanes(Floats());

StripSizes Sizes() { return {kStripRows, kStripColumns}; }

// Packs one strip of which only `rows` rows may exist.
template <int64_t kRows, class T>
void PackEdge(const T* from, int64_t stride_r, int64_t stride_k, int64_t rows, int64_t k, float* to) {
  for (int64_t i = 0; i < k; ++i) {
    for (int64_t r = 0; r < kRows; ++r) to[i * kRows + r] = r < rows ? ToFloat(from[r * stride_r + i * stride_k]) : 0;
  }
}

#if HWY_TARGET != HWY_SCALAR
// Vectors have 128 bits, because shuffles within 128 bits are cheap.
using Quad = hn::Full128<float>;
HWY_INLINE hn::Vec<Quad> LoadQuad(const float* from) { return hn::LoadU(Quad(), from); }
HWY_INLINE hn::Vec<Quad> LoadQuad(const BFloat16* from) {
  const hn::Rebind<uint16_t, Quad> halves;
  const hn::RebindToUnsigned<Quad> bits;
  const auto wide = hn::PromoteTo(bits, hn::LoadU(halves, reinterpret_cast<const uint16_t*>(from)));
  return hn::BitCast(Quad(), hn::ShiftLeft<16>(wide));
}

HWY_INLINE hn::Vec<Quad> LoadQuad(const Float16* from) { return LoadFloat16s(Quad(), from); }
HWY_INLINE hn::Vec<Quad> LoadQuad(const Float8E4M3* from) { return LoadFloat8s(Quad(), from); }
HWY_INLINE hn::Vec<Quad> LoadQuad(const Float8E5M2* from) { return LoadFloat8s(Quad(), from); }

// Packs k steps of a full strip whose rows are adjacent in memory. The last group of four may overlap the one before.
template <int64_t kRows, class T>
HWY_INLINE void CopyFull(const T* from, int64_t stride_k, int64_t k, float* to) {
  for (int64_t i = 0; i < k; ++i, from += stride_k, to += kRows) {
    for (int64_t r = 0; r < kRows; r += 4) {
      const int64_t at = std::min(r, kRows - 4);
      hn::StoreU(LoadQuad(from + at), Quad(), to + at);
    }
  }
}

// Packs k steps of a full strip whose rows are contiguous along k, in squares of 4 x 4. REQUIRES: k % 4 == 0
template <int64_t kRows, class T>
HWY_INLINE void TransposeFull(const T* from, int64_t stride_r, int64_t k, float* to) {
  const Quad d;
  for (int64_t i = 0; i < k; i += 4, to += 4 * kRows) {
    for (int64_t r = 0; r < kRows; r += 4) {
      const int64_t at = std::min(r, kRows - 4);
      const T* corner = from + at * stride_r + i;
      const auto row0 = LoadQuad(corner), row1 = LoadQuad(corner + stride_r);
      const auto row2 = LoadQuad(corner + 2 * stride_r), row3 = LoadQuad(corner + 3 * stride_r);
      const auto left01 = hn::InterleaveLower(d, row0, row1), left23 = hn::InterleaveLower(d, row2, row3);
      const auto right01 = hn::InterleaveUpper(d, row0, row1), right23 = hn::InterleaveUpper(d, row2, row3);
      hn::StoreU(hn::ConcatLowerLower(d, left23, left01), d, to + at);
      hn::StoreU(hn::ConcatUpperUpper(d, left23, left01), d, to + kRows + at);
      hn::StoreU(hn::ConcatLowerLower(d, right23, right01), d, to + 2 * kRows + at);
      hn::StoreU(hn::ConcatUpperUpper(d, right23, right01), d, to + 3 * kRows + at);
    }
  }
}
#endif

// Packs k steps of one strip.
template <int64_t kRows, class T>
HWY_INLINE void PackStrip(const T* from, int64_t stride_r, int64_t stride_k, int64_t rows, int64_t k, float* to) {
  int64_t done = 0;
#if HWY_TARGET != HWY_SCALAR
  if (rows == kRows && stride_r == 1) {
    CopyFull<kRows>(from, stride_k, k, to);
    done = k;
  } else if (rows == kRows && stride_k == 1) {
    done = RoundDown(k, 4);
    TransposeFull<kRows>(from, stride_r, done, to);
  }
#endif
  PackEdge<kRows>(from + done * stride_k, stride_r, stride_k, rows, k - done, to + done * kRows);
}

template <int64_t kRows, class T>
void PackT(const StripSource& source, int64_t r, int64_t k, float* to, int64_t strip_stride) {
  const T* const from = static_cast<const T*>(source.data);
  // If rows are adjacent in memory, a few steps of all strips are read before the next ones, so that memory is read in
  // long stretches.
  const int64_t steps = source.stride_r == 1 ? 8 : std::max<int64_t>(k, 1);
  for (int64_t i = 0; i < k; i += steps) {
    for (int64_t begin = 0; begin < r; begin += kRows) {
      PackStrip<kRows>(from + begin * source.stride_r + i * source.stride_k, source.stride_r, source.stride_k,
                       std::min(kRows, r - begin), std::min(steps, k - i),
                       to + begin / kRows * strip_stride + i * kRows);
    }
  }
}

template <int64_t kRows>
void Pack(const StripSource& source, int64_t r, int64_t k, float* to, int64_t strip_stride) {
  const auto pack = [&](auto element) HWY_ATTR { PackT<kRows, decltype(element)>(source, r, k, to, strip_stride); };
  if (IsFloat8(source.dtype)) return WithFloat8(source.dtype, pack);
  ForElementType(source.dtype, pack);
}

void PackRowsOfA(const StripSource& a, int64_t r, int64_t k, float* to, int64_t strip_stride) {
  Pack<kStripRows>(a, r, k, to, strip_stride);
}
void PackColumnsOfB(const StripSource& b, int64_t r, int64_t k, float* to, int64_t strip_stride) {
  Pack<kStripColumns>(b, r, k, to, strip_stride);
}

using Sums = Accumulators<kStripRows, 2>;

// Multiplies two strips. Fetches `rows` rows of c meanwhile.
template <class T>
HWY_INLINE Sums MultiplyPair(const float* a, const float* b, int64_t k, const T* c, int64_t c_stride, int64_t rows) {
  for (int64_t r = 0; r < rows; ++r) {
    hwy::Prefetch(c + r * c_stride);
    hwy::Prefetch(c + r * c_stride + kStripColumns - 1);
  }
  Sums sums;
  sums.Clear();
#pragma GCC unroll 4
  for (int64_t i = 0; i < k; ++i, a += kStripRows, b += kStripColumns) {
    sums.MulAdd(a, 1, Load(b), Load(b + kStripColumns / 2));
  }
  return sums;
}

// Adds to a tile of sums [kStripRows, kStripColumns] what StripMatMul says, and stores its rows and columns that exist.
// Not inlined, because its constants would take registers from the sums.
template <class T>
HWY_NOINLINE void FinishTile(const StripMatMul& m, const float* tile, int64_t row, int64_t column, const float* bias) {
  const int64_t rows = std::min(kStripRows, m.rows - row), columns = std::min(kStripColumns, m.columns - column);
  const float* before = m.before != nullptr ? m.before + row * m.before_stride + column : nullptr;
  T* c = static_cast<T*>(m.c) + row * m.c_stride + column;
  for (int64_t r = 0; r < rows; ++r, tile += kStripColumns, c += m.c_stride) {
    ForVectors(columns, [&](int64_t i, auto lanes) HWY_ATTR {
      Vector sum = lanes.Load(tile + i);
      if (before != nullptr) sum = hn::Add(lanes.Load(before + r * m.before_stride + i), sum);
      if (m.bias != nullptr) sum = hn::Add(lanes.Load(bias + i), sum);
      lanes.Store(sum, c + i);
    });
  }
}

// Does the same with a tile of sums in registers.
template <class T>
HWY_INLINE void Finish(const StripMatMul& m, Sums sums, int64_t row, int64_t column, const float* bias) {
  if (std::is_same_v<T, float> && m.rows - row >= kStripRows && m.columns - column >= kStripColumns) {
    if (m.before != nullptr) sums.Add(m.before + row * m.before_stride + column, m.before_stride);
    if (m.bias != nullptr) sums.Add(bias, 0);
    return sums.Store(static_cast<float*>(m.c) + row * m.c_stride + column, m.c_stride);
  }
  HWY_ALIGN float tile[kStripRows * kStripColumns];
  sums.Store(tile, kStripColumns);
  FinishTile<T>(m, tile, row, column, bias);
}

// Sets `bias` to the biases of a strip as f32, with zeros beyond the last column.
void LoadBias(const StripMatMul& m, int64_t column, float* bias) {
  ForElementType(m.bias_dtype, [&](auto element) {
    const auto* const from = static_cast<const decltype(element)*>(m.bias) + column;
    for (int64_t i = 0; i < kStripColumns; ++i) bias[i] = column + i < m.columns ? ToFloat(from[i]) : 0;
  });
}

template <class T>
void MultiplyT(const StripMatMul& m) {
  constexpr int64_t kLine = 64 / sizeof(float);
  float bias[kStripColumns];
  // While a strip of b is multiplied, its successor is read into the L2 cache, a part with each strip of a.
  const int64_t part = RoundUp(CeilDivide(m.k * kStripColumns, CeilDivide(m.rows, kStripRows)), kLine);
  for (int64_t column = 0; column < m.columns; column += kStripColumns) {
    if (m.bias != nullptr) LoadBias(m, column, bias);
    const float* const b = m.b + column / kStripColumns * m.b_strip_stride;
    const float* next = b + m.b_strip_stride;
    const float* const end = next + (column + kStripColumns < m.columns ? m.k * kStripColumns : 0);
    for (int64_t row = 0; row < m.rows; row += kStripRows, next += part) {
      for (int64_t i = 0; i < part && next + i < end; i += kLine) __builtin_prefetch(next + i, 0, /*locality=*/2);
      const T* c = static_cast<const T*>(m.c) + row * m.c_stride + column;
      const Sums sums = MultiplyPair(m.a + row * m.k, b, m.k, c, m.c_stride, std::min(kStripRows, m.rows - row));
      Finish<T>(m, sums, row, column, bias);
    }
  }
}

void Multiply(const StripMatMul& m) {
  ForElementType(m.c_dtype, [&](auto element) HWY_ATTR { MultiplyT<decltype(element)>(m); });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(Sizes);
HWY_EXPORT(PackRowsOfA);
HWY_EXPORT(PackColumnsOfB);
HWY_EXPORT(Multiply);

}  // namespace

StripSizes StripSizesOfTarget() { return HWY_DYNAMIC_DISPATCH(Sizes)(); }
void PackRowStrips(const StripSource& a, int64_t r, int64_t k, float* to, int64_t strip_stride) {
  HWY_DYNAMIC_DISPATCH(PackRowsOfA)(a, r, k, to, strip_stride);
}
void PackColumnStrips(const StripSource& b, int64_t r, int64_t k, float* to, int64_t strip_stride) {
  HWY_DYNAMIC_DISPATCH(PackColumnsOfB)(b, r, k, to, strip_stride);
}
void MultiplyStrips(const StripMatMul& matmul) { HWY_DYNAMIC_DISPATCH(Multiply)(matmul); }

}  // namespace shale::cpu
#endif
