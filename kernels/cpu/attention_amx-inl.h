// What attention's kernels for AMX share: how a strip of queries meets blocks of keys, and the packing of operands.
//
// A strip of queries passes over its keys in blocks, so that the scores of strip and block stay in the L1 cache. Every
// matmul computes squares of 32 x 32 (amx.h), and what the mask hides is skipped in such squares. All operands are
// padded with zeros to whole squares.

#if defined(SHALE_KERNELS_CPU_ATTENTION_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_ATTENTION_AMX_INL_H_
#undef SHALE_KERNELS_CPU_ATTENTION_AMX_INL_H_
#else
#define SHALE_KERNELS_CPU_ATTENTION_AMX_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/amx.h"
#include "kernels/cpu/attention_heads.h"
#include "kernels/cpu/attention_sizes-inl.h"
#include "kernels/cpu/pair_tile-inl.h"
#include "kernels/integers.h"

#if HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// A range of rows of a strip, or of keys. Both ends are multiples of kTile.
struct SquareRange {
  int64_t begin, end;
  bool empty() const { return begin >= end; }
};

// Returns the keys of [block.begin, block.end) that any of the queries [i, i + kTile) sees.
HWY_INLINE SquareRange KeysSeen(const AttentionSizes& sizes, int64_t i, SquareRange block) {
  return {std::max(block.begin, sizes.Origin(i)), std::min(block.end, RoundUp(sizes.EndKey(i + kTile - 1), kTile))};
}

// Returns the rows, of a strip of `rows` rows from query i0 on, that see any of the keys [j, j + kTile). All rows of a
// square count if one does.
HWY_INLINE SquareRange RowsSeeing(const AttentionSizes& sizes, int64_t i0, int64_t rows, int64_t j) {
  const int64_t seeing = RoundUp(sizes.RowsSeeingUpTo(j + kTile - 1, i0, rows), kTile);
  return {std::max<int64_t>(0, sizes.FirstQuery(j) - i0), std::min(rows, seeing)};
}

// Multiplies the rows of `a`, from query i0 on, by the keys of `block` that they see, in squares. `tiles` holds all
// keys, packed by PackPairsTransposed. Rows of both operands are `width` pairs wide. Column 0 of c is key block.begin.
HWY_INLINE void MultiplyByKeys(const AttentionSizes& sizes, int64_t i0, int64_t rows, const float* a,
                               const float* tiles, int64_t width, SquareRange block, float* c, int64_t c_stride) {
  for (int64_t j = block.begin; j < block.end; j += kTile) {
    const SquareRange seeing = RowsSeeing(sizes, i0, rows, j);
    for (int64_t r = seeing.begin; r < seeing.end; r += kTile) {
      MultiplyAmxTiles</*kAdd=*/false>(a + r * width, width, tiles + j * width, kTile, width / kSlice,
                                       c + r * c_stride + j - block.begin, c_stride);
    }
  }
}

// Packs rows [i0, i0 + count) of a head as pairs along the row, with rows of zeros up to row `rows`.
HWY_INLINE void PackSquareRows(const HeadRows<BFloat16>& head, int64_t i0, int64_t count, int64_t rows, int64_t width,
                               float* to, int64_t to_width) {
  PackPairs(head[i0], head.stride, count, width, to, to_width);
  std::fill(to + count * to_width, to + rows * to_width, 0.0f);
}

// Packs rows [i0, i0 + count) of a head as pairs across rows, with pairs of zeros up to row `rows`, which is even.
HWY_INLINE void PackSquareRowPairs(const HeadRows<BFloat16>& head, int64_t i0, int64_t count, int64_t rows,
                                   int64_t width, float* to, int64_t to_width) {
  PackRowPairs(head[i0], head.stride, count, width, to, to_width);
  std::fill(to + CeilDivide(count, 2) * to_width, to + rows / 2 * to_width, 0.0f);
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

#endif
