// Attention, forward, for bf16 on processors with AMX. Softmax is computed online: each block of keys corrects the
// sums of the blocks before it if it has a larger score (Milakov and Gimelshein, 2018).

#if defined(SHALE_KERNELS_CPU_ATTENTION_FORWARD_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_ATTENTION_FORWARD_AMX_INL_H_
#undef SHALE_KERNELS_CPU_ATTENTION_FORWARD_AMX_INL_H_
#else
#define SHALE_KERNELS_CPU_ATTENTION_FORWARD_AMX_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/attention_amx-inl.h"
#include "kernels/cpu/attention_softmax-inl.h"
#include "kernels/cpu/row_prefetch.h"

#if HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

class AmxForward {
 public:
  using Head = ForwardHead<BFloat16>;

  AmxForward(const AttentionForward& op, Carver& carver)
      : sizes_(op),
        scale_(op.scale),
        cap_(op.cap),
        k_tiles_(carver.Take(sizes_.padded_s() * width_)),
        v_(carver.Take(sizes_.padded_s() * width_)),
        scores_(carver.Take(kRows * kStride)),
        q_(carver.Take(kRows * width_)),
        out_(carver.Take(kRows * padded_d_)) {}

  // Computes `out` and lse of `head`. Packs keys and values unless the previous head, of the same group, has. `next` is
  // the head that runs next, whose rows are prefetched; it is null for the last head.
  void Run(const Head& head, const Head* next) {
    const bool packed = has_packed_ && !head.first_of_group;
    has_packed_ = true;
    sizes_.position_ids = head.position_ids;
    const TileRegisters registers;
    for (int64_t i0 = 0; i0 < sizes_.s; i0 += kRows) {
      const int64_t queries = std::min(kRows, sizes_.s - i0), rows = RoundUp(queries, kTile), then = i0 + queries;
      if (!packed) {
        sizes_.ForNewKeys(i0, kRows, [&](int64_t j, int64_t count) HWY_ATTR {
          PackPairsTransposed(head.k[j], head.k.stride, count, d_, k_tiles_ + j * width_, width_, /*room=*/out_);
          PackSquareRowPairs(head.v, j, count, RoundUp(count, kTile), d_, v_ + j / 2 * padded_d_, padded_d_);
        });
      }
      PackSquareRows(head.q, i0, queries, rows, d_, q_, width_);

      RowPrefetch ahead;
      ahead.Add(head.out[i0], head.out.stride, queries, d_);
      AddNextKeys(sizes_, head, !packed, next, i0, kRows, ahead);
      if (then < sizes_.s) {
        AddQueries(head, then, ahead);
      } else if (next != nullptr) {
        AddQueries(*next, 0, ahead);
      }
      const SquareRange keys{sizes_.Origin(i0), RoundUp(sizes_.EndKey(then - 1), kTile)};
      ahead.Spread(CeilDivide(keys.end - keys.begin, kKeys) * rows / kTile);

      // A query may see no key of the first block of its square, if its document begins later. Were its largest score
      // -infinity then, the exponentials of this row would be NaN.
      for (int64_t r = 0; r < kRows; ++r) totals_.largest[r] = std::numeric_limits<float>::lowest();
      std::fill(totals_.sum, totals_.sum + kRows, 0.0f);
      for (int64_t j = keys.begin; j < keys.end; j += kKeys) {
        const SquareRange block{j, std::min(j + kKeys, keys.end)};
        MultiplyByKeys(sizes_, i0, rows, q_, k_tiles_, width_, block, scores_, kStride);
        for (int64_t r = 0; r < rows; r += kTile) {
          ahead.Step();
          const SquareRange seen = KeysSeen(sizes_, i0 + r, block);
          if (seen.empty()) continue;
          const bool first = sizes_.Origin(i0 + r) >= j;
          Softmax(i0, r, std::min(queries, r + kTile), j, seen, first);
          AddValues(r, j, seen, first);
        }
      }
      for (int64_t i = 0; i < queries; ++i) {
        head.lse[i0 + i] = totals_.largest[i] + std::log(totals_.sum[i]);
        UnpackRounded(out_ + i * padded_d_, 0, 1, d_, 1 / totals_.sum[i], head.out[i0 + i], 0);
      }
    }
  }

 private:
  static constexpr int64_t kRows = 64;            // Rows of a strip.
  static constexpr int64_t kKeys = 128;           // Keys of a block.
  static constexpr int64_t kStride = kKeys + 16;  // Not a power of two, which would put all rows into the same sets.

  // The largest score and the sum of exponentials of each row of the strip, over the blocks so far.
  struct Totals {
    float largest[kRows], sum[kRows];
  };

  // Adds to `ahead` the rows of the queries of the strip from query i0 on.
  void AddQueries(const ForwardHead<BFloat16>& head, int64_t i0, RowPrefetch& ahead) const {
    ahead.Add(head.q[i0], head.q.stride, std::min(kRows, sizes_.s - i0), d_);
  }

  // Turns the scores of rows [r, end) and the keys `seen` of the block from key j on into exponentials, rounded to
  // bf16. Multiplies sums and outputs of these rows by what a larger score than before takes from them.
  void Softmax(int64_t i0, int64_t r, int64_t end, int64_t j, SquareRange seen, bool first) {
    const int64_t from = seen.begin - j, to = seen.end - j;
    float* const largest = totals_.largest;
    float before[kTile];
    std::copy(largest + r, largest + r + kTile, before);
    for (int64_t i = r; i < end; ++i) {
      float* row = scores_ + i * kStride;
      if (cap_ > 0) CapRow(row, from, to, scale_ / cap_, cap_);
      HideColumns(row, from, std::min(sizes_.FirstKey(i0 + i) - j, to), sizes_.EndKey(i0 + i) - j, to);
      const float here = left_scale_ * LargestOf(row, from, to);
      if (!(here <= largest[i])) largest[i] = here;  // Also if it is NaN.
    }
    float factors[kTile];
    for (int64_t i = 0; i < kTile; i += kSlice) {
      const Vector factor = Exp(hn::Sub(Load(before + i), Load(largest + r + i)));
      Store(factor, factors + i);
      Store(hn::Mul(Load(totals_.sum + r + i), factor), totals_.sum + r + i);
    }
    for (int64_t i = r; i < end; ++i) {
      totals_.sum[i] += ExpRowRounded(scores_ + i * kStride, from, to, left_scale_, largest[i]);
      if (first || factors[i - r] == 1) continue;
      float* row = out_ + i * padded_d_;
      for (int64_t n = 0; n < padded_d_; n += kSlice) Store(hn::Mul(Load(row + n), Splat(factors[i - r])), row + n);
    }
  }

  // Adds to the outputs of rows [r, r + kTile) the values of the keys `seen` of the block from key j on.
  void AddValues(int64_t r, int64_t j, SquareRange seen, bool first) {
    const float* p = scores_ + r * kStride + (seen.begin - j) / 2;
    const float* v = v_ + seen.begin / 2 * padded_d_;
    const int64_t steps = (seen.end - seen.begin) / kTile;
    for (int64_t n = 0; n < padded_d_; n += kTile) {
      float* out = out_ + r * padded_d_ + n;
      first ? MultiplyAmxTiles</*kAdd=*/false>(p, kStride, v + n, padded_d_, steps, out, padded_d_)
            : MultiplyAmxTiles</*kAdd=*/true>(p, kStride, v + n, padded_d_, steps, out, padded_d_);
    }
  }

  AttentionSizes sizes_;
  bool has_packed_ = false;
  const float scale_, cap_;
  const float left_scale_ = cap_ > 0 ? 1 : scale_;  // Of scores after the cap, which takes the scale in.
  const int64_t d_ = sizes_.d, padded_d_ = sizes_.padded_d();
  const int64_t width_ = padded_d_ / 2;  // Pairs of a row.
  float* const k_tiles_;                 // [S / 32][D / 2][32] pairs
  float* const v_;                       // [S / 2, D] pairs
  float* const scores_;                  // [kRows, kKeys], then exponentials: pairs in the first half of each row
  float* const q_;                       // [kRows, D / 2] pairs
  float* const out_;                     // [kRows, D]; before that, temporary memory to transpose in
  Totals totals_;
};

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

#endif
