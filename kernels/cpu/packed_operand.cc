#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/packed_operand.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <algorithm>

#include "kernels/cpu/packed_operand.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr int64_t kRowOfPairs = 2 * kPackedColumns;  // Elements from a pair of rows to the next.

// Of any numbers of rows and columns, the rest zero.
void PackEdge(const uint16_t* b, int64_t stride_k, int64_t stride_n, int64_t rows, int64_t columns, uint16_t* packed) {
  for (int64_t k = 0; k < kPackedRows; ++k) {
    for (int64_t n = 0; n < kPackedColumns; ++n) {
      packed[k / 2 * kRowOfPairs + 2 * n + k % 2] = k < rows && n < columns ? b[k * stride_k + n * stride_n] : 0;
    }
  }
}

#if HWY_TARGET == HWY_SCALAR
void InterleaveRows(const uint16_t* b, int64_t stride_k, uint16_t* packed) {
  PackEdge(b, stride_k, 1, kPackedRows, kPackedColumns, packed);
}
void InterleaveColumns(const uint16_t* b, int64_t stride_n, uint16_t* packed) {
  PackEdge(b, 1, stride_n, kPackedRows, kPackedColumns, packed);
}
#else

// Vectors of 128 bits: shuffles within them are cheap, and memory is the limit.
using Halves = hn::Full128<uint16_t>;
using Pairs = hn::Full128<uint32_t>;
using Quads = hn::Full128<uint64_t>;

// Two rows, their columns side by side: elements (k, n) and (k + 1, n) become neighbours.
void InterleaveRows(const uint16_t* b, int64_t stride_k, uint16_t* packed) {
  const Halves d;
  for (int64_t pair = 0; pair < kPackedRows / 2; ++pair) {
    const uint16_t *upper = b + 2 * pair * stride_k, *lower = upper + stride_k;
    uint16_t* to = packed + pair * kRowOfPairs;
    for (int64_t n = 0; n < kPackedColumns; n += 8) {
      const auto x = hn::LoadU(d, upper + n), y = hn::LoadU(d, lower + n);
      hn::StoreU(hn::InterleaveLower(d, x, y), d, to + 2 * n);
      hn::StoreU(hn::InterleaveUpper(d, x, y), d, to + 2 * n + 8);
    }
  }
}

// Of a transposed operand, whose pairs are neighbours already: four columns by four pairs at a time change sides.
void InterleaveColumns(const uint16_t* b, int64_t stride_n, uint16_t* packed) {
  const Halves d;
  const Pairs d32;
  const Quads d64;
  for (int64_t n = 0; n < kPackedColumns; n += 4) {
    for (int64_t pair = 0; pair < kPackedRows / 2; pair += 4) {
      const auto column = [&](int64_t i) HWY_ATTR {
        return hn::BitCast(d32, hn::LoadU(d, b + (n + i) * stride_n + 2 * pair));
      };
      const auto c0 = column(0), c1 = column(1), c2 = column(2), c3 = column(3);
      const auto low01 = hn::BitCast(d64, hn::InterleaveLower(d32, c0, c1));
      const auto low23 = hn::BitCast(d64, hn::InterleaveLower(d32, c2, c3));
      const auto high01 = hn::BitCast(d64, hn::InterleaveUpper(d32, c0, c1));
      const auto high23 = hn::BitCast(d64, hn::InterleaveUpper(d32, c2, c3));
      const auto store = [&](int64_t i, auto columns_of_pair) HWY_ATTR {
        hn::StoreU(hn::BitCast(d, columns_of_pair), d, packed + (pair + i) * kRowOfPairs + 2 * n);
      };
      store(0, hn::InterleaveLower(d64, low01, low23));
      store(1, hn::InterleaveUpper(d64, low01, low23));
      store(2, hn::InterleaveLower(d64, high01, high23));
      store(3, hn::InterleaveUpper(d64, high01, high23));
    }
  }
}

#endif  // HWY_TARGET == HWY_SCALAR

void Pack(const UnpackedOperand& b, int64_t block, BFloat16* packed) {
  const int64_t begin = block * kPackedColumns, columns = std::min(kPackedColumns, b.n - begin);
  const auto* from = reinterpret_cast<const uint16_t*>(b.data) + begin * b.stride_n;
  auto* to = reinterpret_cast<uint16_t*>(packed) + block * (PackedBytes(b.k, kPackedColumns) / sizeof(uint16_t));
  for (int64_t k = 0; k < b.k; k += kPackedRows) {
    const uint16_t* rows = from + k * b.stride_k;
    if (columns < kPackedColumns || k + kPackedRows > b.k) {
      PackEdge(rows, b.stride_k, b.stride_n, std::min(kPackedRows, b.k - k), columns, to);
    } else if (b.stride_n == 1) {
      InterleaveRows(rows, b.stride_k, to);
    } else {
      InterleaveColumns(rows, b.stride_n, to);
    }
    to += kPackedRows * kPackedColumns;
  }
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(Pack);

int64_t RoundUp(int64_t size, int64_t unit) { return (size + unit - 1) / unit * unit; }

}  // namespace

int64_t PackedColumnBlocks(int64_t n) { return RoundUp(n, kPackedColumns) / kPackedColumns; }

int64_t PackedBytes(int64_t k, int64_t n) {
  return RoundUp(n, kPackedColumns) * RoundUp(k, kPackedRows) * SizeOf(DType::kBFloat16);
}

void PackColumns(const UnpackedOperand& b, int64_t block, BFloat16* packed) {
  HWY_DYNAMIC_DISPATCH(Pack)(b, block, packed);
}

}  // namespace shale::cpu
#endif
