// Small matmuls on fp32 tiles in cache, and the packing of rows into tiles.

#if defined(SHALE_KERNELS_CPU_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_TILE_INL_H_
#undef SHALE_KERNELS_CPU_TILE_INL_H_
#else
#define SHALE_KERNELS_CPU_TILE_INL_H_
#endif

#include <algorithm>
#include <type_traits>

#include "kernels/cpu/accumulators-inl.h"
#include "kernels/cpu/attention_sizes-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

enum class Operand { kRows, kColumns };
enum class Result { kWrite, kScale, kAdd };

// Multiplies kGroup rows r of `a` by kColumns columns n of `b`, which are a tile or a slice. Let s be the sum over i in
// [0, k) of a(r, i) b[i][n]. Sets c[r][n] = s (kWrite), c[r][n] = factor * s (kScale) or c[r][n] += s (kAdd), where
// a(r, i) is a[r][i] (kRows) or a[i][r] (kColumns). Strides are in floats, from one row in memory to the next.
template <Operand kA, Result kC, int kColumns = kTile>
void MultiplyTile(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int64_t k, float factor, float* c,
                  int64_t c_stride) {
  const int64_t a_row = kA == Operand::kRows ? a_stride : 1, a_next = kA == Operand::kRows ? 1 : a_stride;
  constexpr int kVectors = kColumns * sizeof(float) >= 2 * HWY_MAX_BYTES ? 2 : 1;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  for (int64_t n = 0; n < kColumns; n += kVectors * lanes) {
    Accumulators<kGroup, kVectors> sums;
    if constexpr (kC == Result::kAdd) {
      sums.Load(c + n, c_stride);
    } else {
      sums.Clear();
    }
    const float* x = a;
    const float* y = b + n;
#pragma GCC unroll 4
    for (int64_t i = 0; i < k; ++i, x += a_next, y += b_stride) {
      sums.MulAdd(x, a_row, Load(y), Load(y + (kVectors - 1) * lanes));
    }
    if constexpr (kC == Result::kScale) sums.Scale(Splat(factor));
    sums.Store(c + n, c_stride);
  }
}

// Sets to[r] = from[r] as fp32 for `rows` rows of `width`, with zeros up to column `to_stride`.
template <class T>
void PackRows(const T* from, int64_t from_stride, int64_t rows, int64_t width, float* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r, from += from_stride, to += to_stride) {
    ForVectors(width, [&](int64_t i, auto lanes) HWY_ATTR { lanes.Store(lanes.Load(from + i), to + i); });
    if (width < to_stride) std::fill(to + width, to + to_stride, 0.0f);
  }
}

// Packs `rows` rows in panels of kTile columns, `panel_stride` floats apart: column n of row r goes to
// to[n / kTile][r][n % kTile]. `width` is a multiple of kTile.
template <class T>
void PackWholePanels(const T* from, int64_t from_stride, int64_t rows, int64_t width, float* to, int64_t panel_stride) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  for (int64_t r = 0; r < rows; ++r, from += from_stride, to += kTile) {
    float* panel = to;
    for (int64_t n = 0; n < width; n += kTile, panel += panel_stride) {
      for (int64_t i = 0; i < kTile; i += lanes) Store(Load(from + n + i), panel + i);
    }
  }
}

// Sets to[r] = from[r] * factor, rounded to T, for `rows` rows of `width`.
template <class T>
void UnpackRows(const float* from, int64_t from_stride, int64_t rows, int64_t width, float factor, T* to,
                int64_t to_stride) {
  for (int64_t r = 0; r < rows; ++r, from += from_stride, to += to_stride) {
    ForVectors(width, [&](int64_t i, auto lanes)
                          HWY_ATTR { lanes.Store(hn::Mul(lanes.Load(from + i), Splat(factor)), to + i); });
  }
}

// Sets to[i][r] = from[r][i] for `rows` rows r of `columns` floats. `rows` is a multiple of 8, `columns` of 4.
HWY_INLINE void Transpose(const float* from, int64_t stride, int64_t rows, int64_t columns, float* to,
                          int64_t to_stride) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t i = 0; i < columns; ++i) {
    for (int64_t r = 0; r < rows; ++r) to[i * to_stride + r] = from[r * stride + i];
  }
#else
  // Transposes blocks of kRows x 4. A vector has one or two parts of 128 bits, and shuffles within these are cheap. A
  // part holds four columns of a row.
  const hn::CappedTag<float, 8> d;
  const hn::Repartition<double, decltype(d)> couples;
  const hn::Full128<float> part;
  constexpr int64_t kRows = hn::MaxLanes(d);
  const auto load = [&](const auto* row) HWY_ATTR {  // Generic, so that only the branch taken is compiled.
    if constexpr (kRows == 8) {
      return hn::Combine(d, hn::LoadU(part, row + 4 * stride), hn::LoadU(part, row));
    } else {
      return hn::LoadU(part, row);
    }
  };
  for (int64_t i = 0; i < columns; i += 4) {
    for (int64_t r = 0; r < rows; r += kRows) {
      const float* corner = from + r * stride + i;
      const auto row0 = load(corner), row1 = load(corner + stride);
      const auto row2 = load(corner + 2 * stride), row3 = load(corner + 3 * stride);
      const auto left01 = hn::BitCast(couples, hn::InterleaveLower(d, row0, row1));
      const auto left23 = hn::BitCast(couples, hn::InterleaveLower(d, row2, row3));
      const auto right01 = hn::BitCast(couples, hn::InterleaveUpper(d, row0, row1));
      const auto right23 = hn::BitCast(couples, hn::InterleaveUpper(d, row2, row3));
      float* out = to + i * to_stride + r;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(couples, left01, left23)), d, out);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(couples, left01, left23)), d, out + to_stride);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(couples, right01, right23)), d, out + 2 * to_stride);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(couples, right01, right23)), d, out + 3 * to_stride);
    }
  }
#endif
}

// Packs tiles of kTile rows, each transposed: column i of row r goes to to[r / kTile][i][r % kTile]. Rows up to the
// end of the last tile become zeros. `rows_of_tile` is temporary memory for kTile x to_width floats.
template <class T>
void PackTransposed(const T* from, int64_t from_stride, int64_t rows, int64_t width, float* to, int64_t to_width,
                    float* rows_of_tile) {
  for (int64_t begin = 0; begin < rows; begin += kTile) {
    const int64_t count = std::min(kTile, rows - begin);
    const T* tile = from + begin * from_stride;
    if constexpr (std::is_same_v<T, float>) {
      if (count == kTile && width == to_width) {
        Transpose(tile, from_stride, kTile, width, to + begin * to_width, kTile);
        continue;
      }
    }
    PackRows(tile, from_stride, count, width, rows_of_tile, to_width);
    if (count < kTile) std::fill(rows_of_tile + count * to_width, rows_of_tile + kTile * to_width, 0.0f);
    Transpose(rows_of_tile, to_width, kTile, to_width, to + begin * to_width, kTile);
  }
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
