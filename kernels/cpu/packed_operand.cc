#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/packed_operand.cc"
#include "kernels/cpu/packed_operand.h"

#include <algorithm>
#include <cstring>

#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/touch.h"
#include "kernels/integers.h"

#ifndef SHALE_KERNELS_CPU_PACKED_OPERAND_ONCE_
#define SHALE_KERNELS_CPU_PACKED_OPERAND_ONCE_
namespace shale::cpu {

// The bytes of a row that are read ahead at a time. This much of 32 or 64 rows fits into the cache. It is a multiple of
// the bytes of a block of columns.
constexpr int64_t kStretchBytes = 4096;

}  // namespace shale::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Vectors have 128 bits, because shuffles within 128 bits are cheap and memory is the limit.
#if HWY_TARGET == HWY_SCALAR
constexpr bool kInterleaves = false;
#else
constexpr bool kInterleaves = true;
using Halves = hn::Full128<uint16_t>;
using Units = hn::Full128<uint32_t>;
using Quads = hn::Full128<uint64_t>;
#endif

// The operand to pack. T is an unsigned integer of two or four bytes that holds the bits of an element.
template <class T>
struct Source {
  static constexpr int64_t kElements = sizeof(uint32_t) / sizeof(T);  // Per unit.
  static constexpr int64_t kRows = kPackedUnits * kElements;          // Per block of units.

  explicit Source(const UnpackedOperand& b)
      : data(static_cast<const T*>(b.data)), k(b.k), n(b.n), stride_k(b.stride_k), stride_n(b.stride_n) {}
  const T* at(int64_t row, int64_t column) const { return data + row * stride_k + column * stride_n; }
  // Elements from one block of 64 columns to the next in the packed operand.
  int64_t block_elements() const { return RoundUp(k, kRows) * kPackedColumns; }

  const T* data;
  int64_t k, n, stride_k, stride_n;
};

// Packs a block of units of which only `rows` rows and `columns` columns exist, and fills the rest with zeros.
template <class T>
void PackEdge(const Source<T>& b, int64_t row, int64_t column, int64_t rows, int64_t columns, T* packed) {
  constexpr int64_t kElements = Source<T>::kElements;
  for (int64_t k = 0; k < Source<T>::kRows; ++k) {
    for (int64_t n = 0; n < kPackedColumns; ++n) {
      packed[(k / kElements * kPackedColumns + n) * kElements + k % kElements] =
          k < rows && n < columns ? *b.at(row + k, column + n) : T{0};
    }
  }
}

// Packs one row of units of a block. It is one row of f32 or two rows of bf16.
HWY_INLINE void PackUnitRow(const uint32_t* row, const uint32_t*, uint32_t* packed) {
  std::memcpy(packed, row, kPackedColumns * sizeof(uint32_t));
}
HWY_INLINE void PackUnitRow(const uint16_t* upper, const uint16_t* lower, uint16_t* packed) {
#if HWY_TARGET != HWY_SCALAR
  const Halves d;
  for (int64_t n = 0; n < kPackedColumns; n += 8) {
    const auto x = hn::LoadU(d, upper + n), y = hn::LoadU(d, lower + n);
    hn::StoreU(hn::InterleaveLower(d, x, y), d, packed + 2 * n);
    hn::StoreU(hn::InterleaveUpper(d, x, y), d, packed + 2 * n + 8);
  }
#endif
}

// Packs a full block of units.
template <class T>
void PackUnitRows(const T* from, int64_t stride_k, T* packed) {
  constexpr int64_t kElements = Source<T>::kElements;
  for (int64_t k = 0; k < Source<T>::kRows; k += kElements, packed += kElements * kPackedColumns) {
    PackUnitRow(from + k * stride_k, from + (k + kElements - 1) * stride_k, packed);
  }
}

// Packs a full block of units of a transposed operand, in which the elements of a unit are adjacent already. Transposes
// four columns by four units at a time.
template <class T>
void PackUnitColumns(const T* from, int64_t stride_n, T* packed) {
#if HWY_TARGET != HWY_SCALAR
  constexpr int64_t kElements = Source<T>::kElements;
  const hn::Repartition<T, Units> d;
  const Units d32;
  const Quads d64;
  for (int64_t n = 0; n < kPackedColumns; n += 4) {
    for (int64_t unit = 0; unit < kPackedUnits; unit += 4) {
      const auto column = [&](int64_t i) HWY_ATTR {
        return hn::BitCast(d32, hn::LoadU(d, from + (n + i) * stride_n + kElements * unit));
      };
      const auto c0 = column(0), c1 = column(1), c2 = column(2), c3 = column(3);
      const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d32, c0, c1));
      const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d32, c2, c3));
      const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d32, c0, c1));
      const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d32, c2, c3));
      const auto store = [&](int64_t i, auto columns_of_unit) HWY_ATTR {
        hn::StoreU(hn::BitCast(d, columns_of_unit), d, packed + ((unit + i) * kPackedColumns + n) * kElements);
      };
      store(0, hn::InterleaveLower(d64, low01, low23));
      store(1, hn::InterleaveUpper(d64, low01, low23));
      store(2, hn::InterleaveLower(d64, high01, high23));
      store(3, hn::InterleaveUpper(d64, high01, high23));
    }
  }
#endif
}

template <class T>
constexpr int64_t kStretch = kStretchBytes / static_cast<int64_t>(sizeof(T));

// Packs the block of units that begins at row k and column n, as far as b reaches.
template <class T>
void PackBlock(const Source<T>& b, int64_t k, int64_t n, T* packed) {
  constexpr int64_t kRows = Source<T>::kRows;
  const int64_t rows = std::min(kRows, b.k - k), columns = std::min(kPackedColumns, b.n - n);
  HWY_ALIGN T block[kRows * kPackedColumns];
  if (!kInterleaves || rows < kRows || columns < kPackedColumns) {
    PackEdge(b, k, n, rows, columns, block);
  } else if (b.stride_n == 1) {
    PackUnitRows(b.at(k, n), b.stride_k, block);
  } else {
    PackUnitColumns(b.at(k, n), b.stride_n, block);
  }
  // Stores bypass the caches: their lines are not read before they are written, which halves the traffic of the packed
  // operand.
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t i = 0; i < kRows * kPackedColumns; i += lanes) hn::Stream(hn::Load(d, block + i), d, packed + i);
}

// Packs columns [begin, begin + kStretch) of rows [k, k + kRows), as far as b reaches.
template <class T>
void PackRows(const Source<T>& b, int64_t k, int64_t begin, T* packed) {
  const int64_t rows = std::min(Source<T>::kRows, b.k - k), end = std::min(begin + kStretch<T>, b.n);
  TouchRows(b.at(k, begin), b.stride_k, rows, end - begin);
  packed += begin / kPackedColumns * b.block_elements() + k * kPackedColumns;
  for (int64_t n = begin; n < end; n += kPackedColumns, packed += b.block_elements()) PackBlock(b, k, n, packed);
}

// Packs columns [n, n + 64) of a transposed operand, as far as b reaches.
template <class T>
void PackColumns(const Source<T>& b, int64_t n, T* packed) {
  constexpr int64_t kRows = Source<T>::kRows;
  const int64_t columns = std::min(kPackedColumns, b.n - n);
  packed += n / kPackedColumns * b.block_elements();
  for (int64_t k = 0; k < b.k; k += kRows, packed += kRows * kPackedColumns) {
    if (k % kStretch<T> == 0) TouchRows(b.at(k, n), b.stride_n, columns, std::min(kStretch<T>, b.k - k));
    PackBlock(b, k, n, packed);
  }
}

template <class T>
void PackT(const UnpackedOperand& operand, int64_t chunk, std::byte* packed) {
  const Source<T> b(operand);
  T* const to = reinterpret_cast<T*>(packed);
  if (b.stride_n != 1) return PackColumns(b, chunk * kPackedColumns, to);
  const int64_t stretches = CeilDivide(b.n, kStretch<T>);
  PackRows(b, chunk / stretches * Source<T>::kRows, chunk % stretches * kStretch<T>, to);
}

void Pack(const UnpackedOperand& b, int64_t chunk, std::byte* packed) {
  b.dtype == DType::kFloat32 ? PackT<uint32_t>(b, chunk, packed) : PackT<uint16_t>(b, chunk, packed);
  hwy::FlushStream();  // Another thread may read the chunk after this.
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(Pack);

// Returns the rows of b in a block of units.
int64_t RowsOf(DType dtype) { return kPackedUnits * static_cast<int64_t>(sizeof(float)) / SizeOf(dtype); }

}  // namespace

int64_t PackedBytes(DType dtype, int64_t k, int64_t n) {
  const int64_t rows = RowsOf(dtype);
  return RoundUp(n, kPackedColumns) * RoundUp(k, rows) * SizeOf(dtype);
}

int64_t PackedChunks(const UnpackedOperand& b) {
  if (b.stride_n != 1) return CeilDivide(b.n, kPackedColumns);
  return CeilDivide(b.k, RowsOf(b.dtype)) * CeilDivide(b.n, kStretchBytes / SizeOf(b.dtype));
}

void PackChunk(const UnpackedOperand& b, int64_t chunk, std::byte* packed) {
  HWY_DYNAMIC_DISPATCH(Pack)(b, chunk, packed);
}

}  // namespace shale::cpu
#endif
