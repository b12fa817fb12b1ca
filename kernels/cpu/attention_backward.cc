// Attention, backward. For 32 queries at a time: their probabilities again from scores and log-sum-exp, the gradient of
// the scores, and from both the gradient of the queries; those of keys and values are sums over all queries, and over
// the query heads of the group, in fp32 in scratch. Bound by arithmetic; attention_sizes.h says how the work is cut.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_backward.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <omp.h>

#include <algorithm>
#include <limits>

#include "kernels/cpu/attention_sizes.h"
#include "kernels/cpu/attention_softmax-inl.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/pair_panel-inl.h"
#include "kernels/cpu/panel-inl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_prefetch.h"
#include "kernels/cpu/simd-inl.h"

#ifndef SHALE_KERNELS_CPU_ATTENTION_BACKWARD_ONCE_
#define SHALE_KERNELS_CPU_ATTENTION_BACKWARD_ONCE_
namespace shale::cpu {

// One thread's scratch.
struct BackwardScratch {
  BackwardScratch(const AttentionSizes& sizes, Carver& carver)
      : k(carver.Take(sizes.padded_s() * sizes.padded_d())),
        k_panels(carver.Take(sizes.padded_s() * sizes.padded_d())),
        v_panels(carver.Take(sizes.padded_s() * sizes.padded_d())),
        d_k(carver.Take(sizes.padded_s() * sizes.padded_d())),
        d_v(carver.Take(sizes.padded_s() * sizes.padded_d())),
        p(carver.Take(kQueries * sizes.strip_stride())),
        ds(carver.Take(kQueries * sizes.strip_stride())),
        q(carver.Take(kQueries * sizes.padded_d())),
        d_out(carver.Take(kQueries * sizes.padded_d())),
        rows(carver.Take(kQueries * sizes.padded_d())),
        ds_rows(carver.Take(kQueries * sizes.strip_stride() / 2)) {}

  float* k;                    // [S, D]
  float *k_panels, *v_panels;  // [S / 32][D][32]
  float *d_k, *d_v;            // [S, D]
  float *p, *ds;               // [32, S]: scores, then probabilities; d_out v^T, then the gradient of q k^T.
  float *q, *d_out;            // [32, D], q scaled
  float* rows;                 // [32, D]: pairs of q, then those of d_out; then d_q. Before that, room to transpose in.
  float* ds_rows;              // [32, S / 2]: ds as pairs along keys.
};

}  // namespace shale::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// Query head h of sequence b, and the key head it reads.
template <class T>
struct BackwardHead {
  BackwardHead(const AttentionBackward& op, int64_t b, int64_t h, int64_t g)
      : q(op.q_BSHD, b, h),
        k(op.k_BSGD, b, g),
        v(op.v_BSGD, b, g),
        out(op.out_BSHD, b, h),
        d_out(op.d_out_BSHD, b, h),
        d_q(op.d_q_BSHD, b, h),
        d_k(op.d_k_BSGD, b, g),
        d_v(op.d_v_BSGD, b, g),
        lse(op.lse_BHS.as<const float>() + (b * op.q_BSHD.dim(2) + h) * op.q_BSHD.dim(1)) {}

  HeadRows<T> q, k, v, out, d_out, d_q, d_k, d_v;
  const float* lse;
};

// Of a strip's rows. Of one that is no query's: what makes its probabilities and their gradients 0.
struct RowTotals {
  float lse[kQueries], delta[kQueries];
};

// kPairs: all products are of pairs of bf16, of which `k_panels` and `v_panels` then hold half as many as there would
// be floats, and `k`, `q` and `d_out` half as many rows, of pairs of rows.
template <class T, bool kPairs>
class Backward {
 public:
  Backward(const AttentionBackward& op, Carver& carver)
      : sizes_(op.q_BSHD, op.window), scale_(op.scale), own_(sizes_, carver) {}

  // Before the first head of a group.
  void ClearSums() {
    for (float* sum : {own_.d_k, own_.d_v}) std::fill(sum, sum + sizes_.padded_s() * padded_d_, 0.0f);
  }

  // One query head's part: writes d_q and adds to the group's d_k and d_v. The group's first head packs the keys and
  // values. `next` is the head after this one, null after the last of the group.
  void Run(const BackwardHead<T>& head, bool first_of_group, const BackwardHead<T>* next) {
    for (int64_t i0 = 0; i0 < sizes_.s; i0 += kQueries) {
      const int64_t queries = std::min(kQueries, sizes_.s - i0), then = i0 + queries;
      if (first_of_group) PackKeys(head, i0, queries);
      PackQueries(head, i0, queries);
      const RowTotals totals = TotalsOf(head, i0, queries);

      RowPrefetch ahead;
      ahead.Add(head.d_q[i0], head.d_q.stride, queries, d_);
      if (then < sizes_.s) {
        AddStrip(head, then, first_of_group, ahead);
      } else if (next != nullptr) {
        AddStrip(*next, 0, false, ahead);
      }
      if (next == nullptr) {
        for (const auto& rows : {head.d_k, head.d_v}) ahead.Add(rows[i0], rows.stride, queries, d_);
      }
      const int64_t groups = RoundUp(queries, kGroup) / kGroup, panels = padded_d_ / kPanel;
      const int64_t keys = then - RoundDown(sizes_.FirstKey(i0), kGroup);
      ahead.Spread(groups * (keys / kPanel + panels) + keys / kGroup * panels);

      for (int64_t r = 0; r < queries; r += kGroup) ScoreGradients(i0, r, queries, totals, ahead);
      for (int64_t c = 0; c < padded_d_; c += kPanel) {
        for (int64_t r = 0; r < queries; r += kGroup) MultiplyKeys(i0, r, c, ahead);
      }
      Unpack(own_.rows, queries, kPairs ? 1.0f : scale_, head.d_q[i0], head.d_q.stride);
      for (int64_t j = RoundDown(sizes_.FirstKey(i0), kGroup); j < then; j += kGroup) AddToKeys(i0, j, queries, ahead);
    }
  }

  // After the last head of a group.
  void UnpackSums(const BackwardHead<T>& head) {
    Unpack(own_.d_k, sizes_.s, kPairs ? scale_ : 1.0f, head.d_k[0], head.d_k.stride);
    Unpack(own_.d_v, sizes_.s, 1.0f, head.d_v[0], head.d_v.stride);
  }

 private:
  void AddStrip(const BackwardHead<T>& head, int64_t i0, bool keys, RowPrefetch& ahead) const {
    const int64_t queries = std::min(kQueries, sizes_.s - i0);
    for (const auto& rows : {head.k, head.v}) ahead.Add(rows[i0], rows.stride, keys ? queries : 0, d_);
    for (const auto& rows : {head.q, head.d_out, head.out}) ahead.Add(rows[i0], rows.stride, queries, d_);
  }

  // Keys and values [i0, i0 + count).
  void PackKeys(const BackwardHead<T>& head, int64_t i0, int64_t count) {
    float *k_panel = own_.k_panels + i0 * score_d_, *v_panel = own_.v_panels + i0 * score_d_, *room = own_.rows;
    if constexpr (kPairs) {
      PackRowPairs(head.k[i0], head.k.stride, count, d_, own_.k + i0 / 2 * padded_d_, padded_d_);
      PackPairsTransposed(head.k[i0], head.k.stride, count, d_, k_panel, score_d_, room);
      PackPairsTransposed(head.v[i0], head.v.stride, count, d_, v_panel, score_d_, room);
    } else {
      PackRows(head.k[i0], head.k.stride, count, d_, 1.0f, own_.k + i0 * padded_d_, padded_d_);
      PackTransposed(head.k[i0], head.k.stride, count, d_, k_panel, score_d_, room);
      PackTransposed(head.v[i0], head.v.stride, count, d_, v_panel, score_d_, room);
    }
  }

  void PackQueries(const BackwardHead<T>& head, int64_t i0, int64_t count) {
    const int64_t padded = RoundUp(count, kGroup);
    if constexpr (kPairs) {
      PackRowPairs(head.q[i0], head.q.stride, count, d_, own_.q, padded_d_);
      PackRowPairs(head.d_out[i0], head.d_out.stride, count, d_, own_.d_out, padded_d_);
      PackPairs(head.q[i0], head.q.stride, count, d_, q_rows_, score_d_);
      PackPairs(head.d_out[i0], head.d_out.stride, count, d_, d_out_rows_, score_d_);
    } else {
      PackRows(head.q[i0], head.q.stride, count, d_, scale_, q_rows_, score_d_);
      PackRows(head.d_out[i0], head.d_out.stride, count, d_, 1.0f, d_out_rows_, score_d_);
    }
    for (float* rows : {q_rows_, d_out_rows_}) std::fill(rows + count * score_d_, rows + padded * score_d_, 0.0f);
  }

  RowTotals TotalsOf(const BackwardHead<T>& head, int64_t i0, int64_t queries) {
    RowTotals totals;
    for (int64_t i = 0; i < RoundUp(queries, kGroup); ++i) {
      const auto add_product = [](Vector sum, Vector x, Vector y) HWY_ATTR { return hn::MulAdd(x, y, sum); };
      const bool is_query = i < queries;
      totals.lse[i] = is_query ? head.lse[i0 + i] : std::numeric_limits<float>::infinity();
      totals.delta[i] = is_query ? SumOfLanes(Fold(d_, add_product, head.d_out[i0 + i], head.out[i0 + i])) : 0;
    }
    return totals;
  }

  // Probabilities and gradients of the scores of group r of a strip.
  void ScoreGradients(int64_t i0, int64_t r, int64_t queries, const RowTotals& totals, RowPrefetch& ahead) {
    // Column 0 of the strips.
    const int64_t origin = sizes_.PanelOf(i0);
    const int64_t first = sizes_.PanelOf(i0 + r), end = std::min(i0 + r + kGroup, sizes_.s);
    for (int64_t j = first; j < end; j += kPanel) {
      ahead.Step();
      const float *q = q_rows_ + r * score_d_, *d_out = d_out_rows_ + r * score_d_;
      const float *k_panel = own_.k_panels + j * score_d_, *v_panel = own_.v_panels + j * score_d_;
      float *p = own_.p + r * stride_ + j - origin, *ds = own_.ds + r * stride_ + j - origin;
      if constexpr (kPairs) {
        const int64_t pairs = (d_ + 1) / 2;
        MultiplyPairPanel<Operand::kRows, Result::kWrite>(q, score_d_, k_panel, kPanel, pairs, scale_, p, stride_);
        MultiplyPairPanel<Operand::kRows, Result::kWrite>(d_out, score_d_, v_panel, kPanel, pairs, 1.0f, ds, stride_);
      } else {
        MultiplyPanel<Operand::kRows, Result::kWrite>(q, score_d_, k_panel, kPanel, d_, p, stride_);
        MultiplyPanel<Operand::kRows, Result::kWrite>(d_out, score_d_, v_panel, kPanel, d_, ds, stride_);
      }
    }
    const int64_t begin = first - origin, last = RoundUp(end - origin, kVectorColumns);
    for (int64_t i = r; i < std::min(r + kGroup, queries); i += 2) {
      float *p = own_.p + i * stride_, *ds = own_.ds + i * stride_;
      for (int64_t n = 0; n < 2; ++n) {
        const int64_t query = i0 + i + n;
        HideColumns(p + n * stride_, begin, sizes_.FirstKey(query) - origin, query + 1 - origin, last);
      }
      if constexpr (kPairs) {
        BFloat16* ds_rows = reinterpret_cast<BFloat16*>(own_.ds_rows + i * stride_ / 2);
        SoftmaxBackwardPairRows(p, ds, stride_, begin, last, totals.lse + i, totals.delta + i, ds_rows);
      } else {
        SoftmaxBackwardRow(p, ds, begin, last, totals.lse[i], totals.delta[i]);
        SoftmaxBackwardRow(p + stride_, ds + stride_, begin, last, totals.lse[i + 1], totals.delta[i + 1]);
      }
    }
  }

  // Columns [c, c + kPanel) of the gradient of the queries of group r.
  void MultiplyKeys(int64_t i0, int64_t r, int64_t c, RowPrefetch& ahead) {
    ahead.Step();
    const int64_t origin = sizes_.PanelOf(i0);
    const int64_t first = sizes_.FirstKey(i0 + r), end = std::min(i0 + r + kGroup, sizes_.s);
    float* d_q = own_.rows + r * padded_d_ + c;
    if constexpr (kPairs) {
      const int64_t pair = first / 2;
      MultiplyPairPanel<Operand::kRows, Result::kWrite>(
          own_.ds_rows + r * stride_ / 2 + pair - origin / 2, stride_ / 2, own_.k + pair * padded_d_ + c, padded_d_,
          (end + 1) / 2 - pair, scale_, d_q, padded_d_);
    } else {
      MultiplyPanel<Operand::kRows, Result::kWrite>(own_.ds + r * stride_ + first - origin, stride_,
                                                    own_.k + first * padded_d_ + c, padded_d_, end - first, d_q,
                                                    padded_d_);
    }
  }

  // Adds to d_k and d_v of keys [j, j + kGroup) from those queries of a strip that see any of them.
  void AddToKeys(int64_t i0, int64_t j, int64_t queries, RowPrefetch& ahead) {
    const int64_t begin = std::max<int64_t>(0, j - i0);
    const int64_t end = sizes_.window > 0 ? std::min(queries, j + kGroup - 1 + sizes_.window - i0) : queries;
    const int64_t at = begin * stride_ + j - sizes_.PanelOf(i0);
    for (int64_t c = 0; c < padded_d_; c += kPanel) {
      ahead.Step();
      float *d_k = own_.d_k + j * padded_d_ + c, *d_v = own_.d_v + j * padded_d_ + c;
      if constexpr (kPairs) {
        const int64_t row = begin / 2 * padded_d_ + c, pairs = (end + 1) / 2 - begin / 2;
        MultiplyPairPanel<Operand::kColumns, Result::kAdd>(own_.p + at, 2 * stride_, own_.d_out + row, padded_d_, pairs,
                                                           1.0f, d_v, padded_d_);
        MultiplyPairPanel<Operand::kColumns, Result::kAdd>(own_.ds + at, 2 * stride_, own_.q + row, padded_d_, pairs,
                                                           1.0f, d_k, padded_d_);
      } else {
        const int64_t row = begin * padded_d_ + c;
        MultiplyPanel<Operand::kColumns, Result::kAdd>(own_.p + at, stride_, own_.d_out + row, padded_d_, end - begin,
                                                       d_v, padded_d_);
        MultiplyPanel<Operand::kColumns, Result::kAdd>(own_.ds + at, stride_, own_.q + row, padded_d_, end - begin, d_k,
                                                       padded_d_);
      }
    }
  }

  void Unpack(const float* rows, int64_t count, float factor, T* to, int64_t to_stride) {
    if constexpr (kPairs) {
      UnpackRounded(rows, padded_d_, count, d_, factor, to, to_stride);
    } else {
      UnpackRows(rows, padded_d_, count, d_, factor, to, to_stride);
    }
  }

  const AttentionSizes sizes_;
  const float scale_;
  const BackwardScratch own_;
  const int64_t d_ = sizes_.d, padded_d_ = sizes_.padded_d(), stride_ = sizes_.strip_stride();
  const int64_t score_d_ = kPairs ? padded_d_ / 2 : padded_d_;
  // What scores and d_out v^T are computed of. Pairs of rows do not serve there, and those along rows only there.
  float* const q_rows_ = kPairs ? own_.rows : own_.q;
  float* const d_out_rows_ = kPairs ? own_.rows + kQueries * score_d_ : own_.d_out;
};

template <class T, bool kPairs>
void AttentionBackwardT(const AttentionBackward& op, int64_t b, int64_t g, std::byte* scratch) {
  Carver carver(scratch);
  Backward<T, kPairs> backward(op, carver);
  const int64_t heads = op.q_BSHD.dim(2) / op.k_BSGD.dim(2), first = g * heads, last = first + heads - 1;
  backward.ClearSums();
  for (int64_t h = first; h <= last; ++h) {
    const BackwardHead<T> head(op, b, h, g), next(op, b, std::min(h + 1, last), g);
    backward.Run(head, h == first, h < last ? &next : nullptr);
  }
  backward.UnpackSums(BackwardHead<T>(op, b, last, g));
}

// Key head g of sequence b, and the query heads that read it.
void AttentionBackwardGroup(const AttentionBackward& op, int64_t b, int64_t g, std::byte* scratch) {
  if (op.q_BSHD.dtype == DType::kFloat32) return AttentionBackwardT<float, false>(op, b, g, scratch);
  if (HasPairProducts()) return AttentionBackwardT<BFloat16, true>(op, b, g, scratch);
  AttentionBackwardT<BFloat16, false>(op, b, g, scratch);
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(AttentionBackwardGroup);

int64_t ThreadScratchBytes(const AttentionBackward& op) {
  Carver carver(nullptr);
  BackwardScratch(AttentionSizes(op.q_BSHD, op.window), carver);
  return carver.size_bytes();
}

}  // namespace

int64_t ScratchBytesOf(const AttentionBackward& op, const Context& context) {
  const int64_t items = op.q_BSHD.dim(0) * op.k_BSGD.dim(2);
  return ThreadScratchBytes(op) * std::min<int64_t>(context.threads, items);
}

absl::Status Run(const AttentionBackward& op, Scratch scratch, const Context& context) {
  const int64_t groups = op.k_BSGD.dim(2), thread_bytes = ThreadScratchBytes(op);
  const int threads = static_cast<int>(std::min<int64_t>(context.threads, op.q_BSHD.dim(0) * groups));
  ParallelFor(threads, op.q_BSHD.dim(0) * groups, /*block=*/1, [&](int64_t item, int64_t) {
    HWY_DYNAMIC_DISPATCH(AttentionBackwardGroup)
    (op, item / groups, item % groups, scratch.data + omp_get_thread_num() * thread_bytes);
  });
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
