// Packs a matrix of bf16 into panels of pairs along k, as pair_products.cc multiplies them.

#if defined(SHALE_KERNELS_CPU_PAIR_PACKING_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_PAIR_PACKING_INL_H_
#undef SHALE_KERNELS_CPU_PAIR_PACKING_INL_H_
#else
#define SHALE_KERNELS_CPU_PAIR_PACKING_INL_H_
#endif

#include <algorithm>

#include "hwy/cache_control.h"
#include "kernels/cpu/attention_sizes.h"
#include "kernels/cpu/simd-inl.h"

#if HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// Of a matrix whose rows lie in one piece.
template <int64_t kWidth>
HWY_INLINE void InterleaveRows(const uint16_t* from, int64_t stride_k, int64_t k, int64_t count, uint32_t* words,
                               int64_t panel_words) {
  constexpr int64_t kAhead = 16;  // Rows; prefetchers do not follow strides of pages.
  const Bits d;
  for (int64_t row = 0; row < k; row += 2, from += 2 * stride_k, words += kWidth) {
    const bool has_odd = row + 1 < k;
    if (row + kAhead + 1 < k) {
      for (int64_t j = 0; j < count; j += 32) {
        hwy::Prefetch(from + kAhead * stride_k + j);
        hwy::Prefetch(from + (kAhead + 1) * stride_k + j);
      }
    }
    ForVectors(count, [&](int64_t j, auto lanes) HWY_ATTR {
      const auto even = hn::PromoteTo(d, lanes.LoadHalves(from + j));
      const auto odd = has_odd ? hn::PromoteTo(d, lanes.LoadHalves(from + stride_k + j)) : hn::Zero(d);
      // The last vector is stored whole.
      hn::StoreU(hn::Or(even, hn::ShiftLeft<16>(odd)), d, words + j / kWidth * panel_words + j % kWidth);
    });
    for (int64_t j = RoundUp(count, 16); j < RoundUp(count, kWidth); j += 16) {
      hn::StoreU(hn::Zero(d), d, words + j / kWidth * panel_words + j % kWidth);
    }
  }
}

// A panel of a matrix whose columns lie in one piece, `stride` apart: squares of 4 x 4 pairs are transposed.
template <int64_t kWidth>
HWY_INLINE void TransposePairs(const uint16_t* from, int64_t stride, int64_t k, int64_t count, uint32_t* words) {
  const hn::Full128<uint32_t> quad;
  const hn::Full128<uint16_t> halves;
  const auto load = [&](int64_t column, int64_t i) HWY_ATTR {
    return hn::BitCast(quad, hn::LoadU(halves, from + column * stride + 2 * i));
  };
  constexpr int64_t kPairs = 64;  // At a time: what is written meanwhile stays in the first-level cache.
  const int64_t whole_columns = RoundDown(count, 4), whole_pairs = RoundDown(k / 2, 4);
  for (int64_t begin = 0; begin < whole_pairs; begin += kPairs) {
    for (int64_t j = 0; j < whole_columns; j += 4) {
      for (int64_t i = begin; i < std::min(begin + kPairs, whole_pairs); i += 4) {
        const auto row0 = load(j, i), row1 = load(j + 1, i), row2 = load(j + 2, i), row3 = load(j + 3, i);
        const auto left01 = hn::InterleaveLower(quad, row0, row1), left23 = hn::InterleaveLower(quad, row2, row3);
        const auto right01 = hn::InterleaveUpper(quad, row0, row1), right23 = hn::InterleaveUpper(quad, row2, row3);
        uint32_t* out = words + i * kWidth + j;
        hn::StoreU(hn::ConcatLowerLower(quad, left23, left01), quad, out);
        hn::StoreU(hn::ConcatUpperUpper(quad, left23, left01), quad, out + kWidth);
        hn::StoreU(hn::ConcatLowerLower(quad, right23, right01), quad, out + 2 * kWidth);
        hn::StoreU(hn::ConcatUpperUpper(quad, right23, right01), quad, out + 3 * kWidth);
      }
    }
  }
  const auto pair_of = [&](int64_t j, int64_t i) {
    const uint16_t* at = from + j * stride + 2 * i;
    return at[0] | (2 * i + 1 < k ? uint32_t{at[1]} << 16 : 0);
  };
  for (int64_t i = 0; i < (k + 1) / 2; ++i) {
    uint32_t* row = words + i * kWidth;
    for (int64_t j = i < whole_pairs ? whole_columns : 0; j < count; ++j) row[j] = pair_of(j, i);
    std::fill(row + count, row + kWidth, 0u);
  }
}

// Packs `x`, a matrix of `k` rows whose elements lie `stride_k` apart along k and `stride` along the other dimension
// (one of both is 1), into panels of kWidth columns: to[p][i][j] = the pair x[2i][p kWidth + j],
// x[2i + 1][p kWidth + j] for `count` columns; zeros up to the end of the last panel, and for a row after the last.
template <int64_t kWidth>
void PackPairPanels(const BFloat16* x, int64_t stride_k, int64_t stride, int64_t k, int64_t count, BFloat16* to) {
  const int64_t panel_words = (k + 1) / 2 * kWidth;
  // Several panels at a time, for whole lines of memory.
  constexpr int64_t kColumns = 4 * kWidth;
  for (int64_t j = 0; j < count; j += kColumns) {
    uint32_t* words = reinterpret_cast<uint32_t*>(to) + j / kWidth * panel_words;
    const auto* from = reinterpret_cast<const uint16_t*>(x) + j * stride;
    if (stride == 1) {
      InterleaveRows<kWidth>(from, stride_k, k, std::min(kColumns, count - j), words, panel_words);
    } else {
      for (int64_t i = j; i < std::min(j + kColumns, count); i += kWidth) {
        TransposePairs<kWidth>(from, stride, k, std::min(kWidth, count - i), words);
        from += kWidth * stride;
        words += panel_words;
      }
    }
  }
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

#endif
