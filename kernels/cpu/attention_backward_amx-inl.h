// Attention, backward, for bf16 on processors with AMX. The gradients of keys and values are summed transposed, so that
// the probabilities and their gradients are operand b of these matmuls, for which they need not be transposed.

#if defined(SHALE_KERNELS_CPU_ATTENTION_BACKWARD_AMX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_ATTENTION_BACKWARD_AMX_INL_H_
#undef SHALE_KERNELS_CPU_ATTENTION_BACKWARD_AMX_INL_H_
#else
#define SHALE_KERNELS_CPU_ATTENTION_BACKWARD_AMX_INL_H_
#endif

#include <algorithm>

#include "kernels/cpu/attention_amx-inl.h"
#include "kernels/cpu/attention_softmax-inl.h"
#include "kernels/cpu/row_prefetch.h"

#if HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

class AmxBackward {
 public:
  using Head = BackwardHead<BFloat16>;

  AmxBackward(const AttentionBackward& op, Carver& carver)
      : sizes_(op),
        scale_(op.scale),
        cap_(op.cap),
        k_(carver.Take(sizes_.padded_s() * width_)),
        k_tiles_(carver.Take(sizes_.padded_s() * width_)),
        v_tiles_(carver.Take(sizes_.padded_s() * width_)),
        d_k_(carver.Take(sizes_.padded_s() * padded_d_)),
        d_v_(carver.Take(sizes_.padded_s() * padded_d_)),
        p_(carver.Take(kRows * kStride)),
        ds_(carver.Take(kRows * kStride)),
        ds_along_(carver.Take(kRows * kKeys / 2)),
        q_(carver.Take(kRows * width_)),
        d_out_(carver.Take(kRows * width_)),
        q_columns_(carver.Take(kTile * padded_d_)),
        d_out_columns_(carver.Take(kTile * padded_d_)),
        d_q_(carver.Take(kRows * padded_d_)) {}

  // Writes d_q of `head` and adds to d_k and d_v of its group. The first head of a group packs keys and values; the
  // last head writes d_k and d_v. `next` is the head that runs next, whose rows are prefetched; it is null for the last
  // head.
  void Run(const Head& head, const Head* next) {
    sizes_.position_ids = head.position_ids;
    const TileRegisters registers;
    if (head.first_of_group) {
      for (float* sum : {d_k_, d_v_}) std::fill(sum, sum + sizes_.padded_s() * padded_d_, 0.0f);
    }
    for (int64_t i0 = 0; i0 < sizes_.s; i0 += kRows) {
      const int64_t queries = std::min(kRows, sizes_.s - i0), rows = RoundUp(queries, kTile), then = i0 + queries;
      if (head.first_of_group) {
        sizes_.ForNewKeys(i0, kRows, [&](int64_t j, int64_t count) HWY_ATTR { PackKeys(head, j, count); });
      }
      PackQueries(head, i0, queries, rows);
      const RowTerms<kRows> terms = TermsOf<kRows>(head, i0, queries, rows, d_);

      RowPrefetch ahead;
      ahead.Add(head.d_q[i0], head.d_q.stride, queries, d_);
      AddNextKeys(sizes_, head, head.first_of_group, next, i0, kRows, ahead);
      if (then < sizes_.s) {
        AddQueries(head, then, ahead);
      } else if (next != nullptr) {
        AddQueries(*next, 0, ahead);
      }
      const SquareRange keys{sizes_.Origin(i0), RoundUp(sizes_.EndKey(then - 1), kTile)};
      ahead.Spread(CeilDivide(keys.end - keys.begin, kKeys) * rows / kTile);

      for (int64_t j = keys.begin; j < keys.end; j += kKeys) {
        const SquareRange block{j, std::min(j + kKeys, keys.end)};
        MultiplyByKeys(sizes_, i0, rows, q_, k_tiles_, width_, block, p_, kStride);
        MultiplyByKeys(sizes_, i0, rows, d_out_, v_tiles_, width_, block, ds_, kStride);
        for (int64_t r = 0; r < rows; r += kTile) {
          ahead.Step();
          const SquareRange seen = KeysSeen(sizes_, i0 + r, block);
          if (seen.empty()) continue;
          Softmax(i0, r, j, seen, terms);
          AddToQueries(r, j, seen, /*first=*/sizes_.Origin(i0 + r) >= j);
        }
        AddToKeys(i0, rows, block);
      }
      UnpackRounded(d_q_, padded_d_, queries, d_, scale_, head.d_q[i0], head.d_q.stride);
    }
    if (head.last_of_group) {
      UnpackKeys(d_k_, scale_, head.d_k);
      UnpackKeys(d_v_, 1.0f, head.d_v);
    }
  }

 private:
  static constexpr int64_t kRows = 64;            // Rows of a strip: as many pairs as a tile of keys has rows.
  static constexpr int64_t kKeys = 64;            // Keys of a block.
  static constexpr int64_t kStride = kKeys + 16;  // Not a power of two, which would put all rows into the same sets.
  static_assert(kRows == 2 * kTile);

  // Adds to `ahead` the rows of the queries of the strip from query i0 on.
  void AddQueries(const BackwardHead<BFloat16>& head, int64_t i0, RowPrefetch& ahead) const {
    const int64_t queries = std::min(kRows, sizes_.s - i0);
    for (const auto& rows : {head.q, head.d_out, head.out}) ahead.Add(rows[i0], rows.stride, queries, d_);
  }

  // Packs keys and values [j, j + count), with zeros up to the end of the last square.
  void PackKeys(const BackwardHead<BFloat16>& head, int64_t j, int64_t count) {
    PackSquareRowPairs(head.k, j, count, RoundUp(count, kTile), d_, k_ + j / 2 * padded_d_, padded_d_);
    PackPairsTransposed(head.k[j], head.k.stride, count, d_, k_tiles_ + j * width_, width_, /*room=*/d_q_);
    PackPairsTransposed(head.v[j], head.v.stride, count, d_, v_tiles_ + j * width_, width_, /*room=*/d_q_);
  }

  void PackQueries(const BackwardHead<BFloat16>& head, int64_t i0, int64_t count, int64_t rows) {
    PackSquareRows(head.q, i0, count, rows, d_, q_, width_);
    PackSquareRows(head.d_out, i0, count, rows, d_, d_out_, width_);
    PackColumns(head.q, i0, count, q_columns_);
    PackColumns(head.d_out, i0, count, d_out_columns_);
  }

  // Packs rows [i0, i0 + count) of a head as pairs across rows, transposed: column i of the rows goes to to[i].
  void PackColumns(const HeadRows<BFloat16>& head, int64_t i0, int64_t count, float* to) {
    PackSquareRowPairs(head, i0, count, kRows, d_, /*to=*/d_q_, padded_d_);
    Transpose(d_q_, padded_d_, kRows / 2, padded_d_, to, kTile);
  }

  // Computes probabilities and gradients of the scores for rows [r, r + kTile) and the keys `seen` of the block from
  // key j on.
  void Softmax(int64_t i0, int64_t r, int64_t j, SquareRange seen, const RowTerms<kRows>& terms) {
    const int64_t from = seen.begin - j, to = seen.end - j;
    for (int64_t i = r; i < r + kTile; i += 2) {
      float* p = p_ + i * kStride;
      for (int64_t n = 0; n < 2; ++n) {
        const int64_t query = i0 + i + n;
        if (cap_ > 0) {
          CapRowBackward(p + n * kStride, ds_ + (i + n) * kStride, from, to, scale_ / cap_, cap_, terms.delta[i + n]);
        }
        // A query may see none of these keys, although another query of its square does.
        HideColumns(p + n * kStride, from, std::min(sizes_.FirstKey(query) - j, to), sizes_.EndKey(query) - j, to);
      }
      SoftmaxBackwardPairRows(p, ds_ + i * kStride, kStride, from, to, left_scale_, terms.lse + i, terms.delta + i,
                              reinterpret_cast<BFloat16*>(ds_along_ + i * kKeys / 2), kKeys);
    }
  }

  // Adds to d_q of rows [r, r + kTile) the contribution of the keys `seen` of the block from key j on.
  void AddToQueries(int64_t r, int64_t j, SquareRange seen, bool first) {
    const float* ds = ds_along_ + (r * kKeys + seen.begin - j) / 2;
    const float* k = k_ + seen.begin / 2 * padded_d_;
    const int64_t steps = (seen.end - seen.begin) / kTile;
    for (int64_t n = 0; n < padded_d_; n += kTile) {
      float* to = d_q_ + r * padded_d_ + n;
      first ? MultiplyAmxTiles</*kAdd=*/false>(ds, kKeys / 2, k + n, padded_d_, steps, to, padded_d_)
            : MultiplyAmxTiles</*kAdd=*/true>(ds, kKeys / 2, k + n, padded_d_, steps, to, padded_d_);
    }
  }

  // Adds to d_k and d_v of the keys of the block the contribution of the rows that see them.
  void AddToKeys(int64_t i0, int64_t rows, SquareRange block) {
    for (int64_t j = block.begin; j < block.end; j += kTile) {
      const SquareRange seeing = RowsSeeing(sizes_, i0, rows, j);
      if (seeing.empty()) continue;
      const int64_t steps = (seeing.end - seeing.begin) / kTile;
      const int64_t at = seeing.begin * kStride + j - block.begin, to = j * padded_d_;
      for (int64_t n = 0; n < padded_d_; n += kTile) {
        const int64_t from = n * kTile + seeing.begin / 2;
        MultiplyAmxTiles</*kAdd=*/true>(d_out_columns_ + from, kTile, p_ + at, 2 * kStride, steps,
                                        d_v_ + to + n * kTile, kTile);
        MultiplyAmxTiles</*kAdd=*/true>(q_columns_ + from, kTile, ds_ + at, 2 * kStride, steps, d_k_ + to + n * kTile,
                                        kTile);
      }
    }
  }

  // Multiplies d_k or d_v by `factor`, rounds it, and writes it to the rows of the head.
  void UnpackKeys(const float* tiles, float factor, const HeadRows<BFloat16>& to) {
    for (int64_t j = 0; j < sizes_.s; j += kTile) {
      Transpose(tiles + j * padded_d_, kTile, padded_d_, kTile, /*to=*/d_q_, padded_d_);
      UnpackRounded(d_q_, padded_d_, std::min(kTile, sizes_.s - j), d_, factor, to[j], to.stride);
    }
  }

  AttentionSizes sizes_;
  const float scale_, cap_;
  const float left_scale_ = cap_ > 0 ? 1 : scale_;  // Of scores after the cap, which takes the scale in.
  const int64_t d_ = sizes_.d, padded_d_ = sizes_.padded_d();
  const int64_t width_ = padded_d_ / 2;    // Pairs of a row.
  float* const k_;                         // [S / 2, D] pairs
  float *const k_tiles_, *const v_tiles_;  // [S / 32][D / 2][32] pairs
  float *const d_k_, *const d_v_;          // [S / 32][D][32]
  // [kRows, kKeys]. p_: scores, then probabilities. ds_: d_out v^T, then the gradient of the scores. The probabilities
  // and gradients are pairs across rows, in every second row.
  float *const p_, *const ds_;
  float* const ds_along_;                          // [kRows, kKeys / 2]: ds as pairs along keys
  float *const q_, *const d_out_;                  // [kRows, D / 2] pairs
  float *const q_columns_, *const d_out_columns_;  // [D, kRows / 2] pairs
  float* const d_q_;                               // [kRows, D]; before and after, temporary memory to transpose in
};

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif

#endif
