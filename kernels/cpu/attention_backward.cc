// Attention, backward. For 32 queries at a time: their probabilities again from scores and log-sum-exp, the gradient of
// the scores, and from both the gradient of the queries; those of keys and values are sums over all queries, and over
// the query heads of the group, in fp32 in scratch. Bound by arithmetic; attention_sizes.h says how the work is cut.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_backward.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <omp.h>

#include "kernels/cpu/attention_sizes.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/pair_panel-inl.h"
#include "kernels/cpu/panel-inl.h"
#include "kernels/cpu/parallel.h"
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

// From scores and d_out v^T to probabilities and the gradient of scores, for columns [first, end) of a row; 0 in the
// rest of the vectors that cover them.
HWY_INLINE void SoftmaxBackwardRow(float* p, float* ds, int64_t first, int64_t end, float lse, float delta) {
  ForCoveringVectors(first, end, [&](int64_t i) HWY_ATTR {
    const Vector probability = Exp(hn::Sub(Load(p + i), Splat(lse)));
    Store(probability, p + i);
    Store(hn::Mul(probability, hn::Sub(Load(ds + i), Splat(delta))), ds + i);
  });
  FillEdges(p, first, end, 0.0f);
  FillEdges(ds, first, end, 0.0f);
}

// One query head's part: writes d_q and adds to the group's d_k and d_v.
template <class T, bool kPairs>
void AddHead(const AttentionBackward& op, const AttentionSizes& sizes, int64_t b, int64_t h,
             const BackwardScratch& own) {
  const int64_t s = sizes.s, d = sizes.d, padded_d = sizes.padded_d(), stride = sizes.strip_stride();
  const int64_t score_d = kPairs ? padded_d / 2 : padded_d;
  const auto row = [b, h](const Tensor& t, int64_t i) {
    return t.as<T>() + b * t.stride(0) + i * t.stride(1) + h * t.stride(2);
  };
  const float* lse = op.lse_BHS.as<const float>() + (b * op.q_BSHD.dim(2) + h) * s;

  for (int64_t i0 = 0; i0 < s; i0 += kQueries) {
    const int64_t queries = std::min(kQueries, s - i0), padded_queries = RoundUp(queries, kGroup);
    if constexpr (!kPairs) {
      PackRows(row(op.q_BSHD, i0), op.q_BSHD.stride(1), queries, d, op.scale, own.q, padded_d);
      PackRows(row(op.d_out_BSHD, i0), op.d_out_BSHD.stride(1), queries, d, 1.0f, own.d_out, padded_d);
      for (float* padded : {own.q, own.d_out}) {
        std::fill(padded + queries * padded_d, padded + padded_queries * padded_d, 0.0f);
      }
    }
    float *q_pairs = own.rows, *d_out_pairs = own.rows + kQueries * score_d;
    if constexpr (kPairs) {
      PackRowPairs(row(op.q_BSHD, i0), op.q_BSHD.stride(1), queries, d, own.q, padded_d);
      PackRowPairs(row(op.d_out_BSHD, i0), op.d_out_BSHD.stride(1), queries, d, own.d_out, padded_d);
      PackPairs(row(op.q_BSHD, i0), op.q_BSHD.stride(1), queries, d, q_pairs, score_d);
      PackPairs(row(op.d_out_BSHD, i0), op.d_out_BSHD.stride(1), queries, d, d_out_pairs, score_d);
      for (float* padded : {q_pairs, d_out_pairs}) {
        std::fill(padded + queries * score_d, padded + padded_queries * score_d, 0.0f);
      }
    }
    float deltas[kQueries];
    for (int64_t i = 0; i < queries; ++i) {
      const auto add_product = [](Vector sum, Vector x, Vector y) HWY_ATTR { return hn::MulAdd(x, y, sum); };
      deltas[i] = SumOfLanes(Fold(d, add_product, row(op.d_out_BSHD, i0 + i), row(op.out_BSHD, i0 + i)));
    }

    // Column 0 of the strips.
    const int64_t origin = RoundDown(sizes.FirstKey(i0), kPanel);
    for (int64_t r = 0; r < queries; r += kGroup) {
      const int64_t first = RoundDown(sizes.FirstKey(i0 + r), kPanel), end = std::min(i0 + r + kGroup, s);
      for (int64_t j = first; j < end; j += kPanel) {
        const int64_t at = r * stride + j - origin;
        const float *k_panel = own.k_panels + j * score_d, *v_panel = own.v_panels + j * score_d;
        if constexpr (kPairs) {
          const int64_t pairs = (d + 1) / 2;
          MultiplyPairPanel<Operand::kRows, Result::kWrite>(q_pairs + r * score_d, score_d, k_panel, kPanel, pairs,
                                                            op.scale, own.p + at, stride);
          MultiplyPairPanel<Operand::kRows, Result::kWrite>(d_out_pairs + r * score_d, score_d, v_panel, kPanel, pairs,
                                                            1.0f, own.ds + at, stride);
        } else {
          MultiplyPanel<Operand::kRows, Result::kWrite>(own.q + r * score_d, score_d, k_panel, kPanel, d, own.p + at,
                                                        stride);
          MultiplyPanel<Operand::kRows, Result::kWrite>(own.d_out + r * score_d, score_d, v_panel, kPanel, d,
                                                        own.ds + at, stride);
        }
      }
      for (int64_t i = r; i < std::min(r + kGroup, queries); ++i) {
        const int64_t from = sizes.FirstKey(i0 + i) - origin, to = i0 + i + 1 - origin;
        SoftmaxBackwardRow(own.p + i * stride, own.ds + i * stride, from, to, lse[i0 + i], deltas[i]);
        for (float* strip : {own.p, own.ds}) ZeroAround(strip + i * stride, first - origin, from, to, end - origin);
      }
      if constexpr (kPairs) {
        for (int64_t i = r; i < std::min(r + kGroup, queries); i += 2) {
          float *p = own.p + i * stride, *ds = own.ds + i * stride;
          BFloat16* rows = reinterpret_cast<BFloat16*>(own.ds_rows + i * stride / 2);
          const bool both = i + 1 < queries;
          ForCoveringVectors(first - origin, end - origin, [&](int64_t c) HWY_ATTR {
            const Vector p1 = both ? Load(p + stride + c) : hn::Zero(Floats());
            const Vector ds0 = Load(ds + c), ds1 = both ? Load(ds + stride + c) : hn::Zero(Floats());
            StorePair({Load(p + c), p1}, reinterpret_cast<BFloat16*>(p + c));
            StorePair({ds0, ds1}, reinterpret_cast<BFloat16*>(ds + c));
            Store(ds0, rows + c);
            Store(ds1, rows + stride + c);
          });
        }
      }
    }

    for (int64_t c = 0; c < padded_d; c += kPanel) {
      for (int64_t r = 0; r < queries; r += kGroup) {
        const int64_t first = sizes.FirstKey(i0 + r), end = std::min(i0 + r + kGroup, s);
        if constexpr (kPairs) {
          const int64_t pair = first / 2;
          MultiplyPairPanel<Operand::kRows, Result::kWrite>(
              own.ds_rows + r * stride / 2 + pair - origin / 2, stride / 2, own.k + pair * padded_d + c, padded_d,
              (end + 1) / 2 - pair, op.scale, own.rows + r * padded_d + c, padded_d);
        } else {
          MultiplyPanel<Operand::kRows, Result::kWrite>(own.ds + r * stride + first - origin, stride,
                                                        own.k + first * padded_d + c, padded_d, end - first,
                                                        own.rows + r * padded_d + c, padded_d);
        }
      }
    }
    UnpackRows(own.rows, padded_d, queries, d, kPairs ? 1.0f : op.scale, row(op.d_q_BSHD, i0), op.d_q_BSHD.stride(1));

    // Eight keys at a time, with those of the queries that see any of them.
    for (int64_t j = RoundDown(sizes.FirstKey(i0), kGroup); j < i0 + queries; j += kGroup) {
      const int64_t begin = std::max<int64_t>(0, j - i0);
      const int64_t end = sizes.window > 0 ? std::min(queries, j + kGroup - 1 + sizes.window - i0) : queries;
      const int64_t at = begin * stride + j - origin;
      for (int64_t c = 0; c < padded_d; c += kPanel) {
        if constexpr (kPairs) {
          const int64_t b_at = begin / 2 * padded_d + c, pairs = (end + 1) / 2 - begin / 2;
          MultiplyPairPanel<Operand::kColumns, Result::kAdd>(own.p + at, 2 * stride, own.d_out + b_at, padded_d, pairs,
                                                             1.0f, own.d_v + j * padded_d + c, padded_d);
          MultiplyPairPanel<Operand::kColumns, Result::kAdd>(own.ds + at, 2 * stride, own.q + b_at, padded_d, pairs,
                                                             1.0f, own.d_k + j * padded_d + c, padded_d);
        } else {
          MultiplyPanel<Operand::kColumns, Result::kAdd>(own.p + at, stride, own.d_out + begin * padded_d + c, padded_d,
                                                         end - begin, own.d_v + j * padded_d + c, padded_d);
          MultiplyPanel<Operand::kColumns, Result::kAdd>(own.ds + at, stride, own.q + begin * padded_d + c, padded_d,
                                                         end - begin, own.d_k + j * padded_d + c, padded_d);
        }
      }
    }
  }
}

// kPairs: q k^T and d_out v^T of pairs of bf16, of which `k_panels` and `v_panels` then hold D / 2 where there would be
// D floats.
template <class T, bool kPairs>
void AttentionBackwardT(const AttentionBackward& op, int64_t b, int64_t g, std::byte* scratch) {
  const AttentionSizes sizes(op.q_BSHD, op.window);
  const int64_t s = sizes.s, d = sizes.d, padded_d = sizes.padded_d();
  const int64_t heads_per_group = op.q_BSHD.dim(2) / op.k_BSGD.dim(2);
  const auto head = [b, g](const Tensor& t) { return t.as<T>() + b * t.stride(0) + g * t.stride(2); };
  Carver carver(scratch);
  const BackwardScratch own(sizes, carver);

  if constexpr (kPairs) {
    PackRowPairs(head(op.k_BSGD), op.k_BSGD.stride(1), s, d, own.k, padded_d);
  } else {
    PackRows(head(op.k_BSGD), op.k_BSGD.stride(1), s, d, 1.0f, own.k, padded_d);
  }
  const auto pack_transposed = [&](const Tensor& t, float* panels) {
    if constexpr (kPairs) {
      PackPairsTransposed(head(t), t.stride(1), s, d, panels, padded_d / 2, /*rows_of_panel=*/own.rows);
    } else {
      PackTransposed(head(t), t.stride(1), s, d, panels, padded_d, /*rows_of_panel=*/own.rows);
    }
  };
  pack_transposed(op.k_BSGD, own.k_panels);
  pack_transposed(op.v_BSGD, own.v_panels);
  for (float* sum : {own.d_k, own.d_v}) std::fill(sum, sum + sizes.padded_s() * padded_d, 0.0f);
  for (int64_t h = g * heads_per_group; h < (g + 1) * heads_per_group; ++h) AddHead<T, kPairs>(op, sizes, b, h, own);
  UnpackRows(own.d_k, padded_d, s, d, kPairs ? op.scale : 1.0f, head(op.d_k_BSGD), op.d_k_BSGD.stride(1));
  UnpackRows(own.d_v, padded_d, s, d, 1.0f, head(op.d_v_BSGD), op.d_v_BSGD.stride(1));
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
