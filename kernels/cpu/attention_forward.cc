// Attention, forward: scores of 32 queries with all their keys, softmax in place, product with the values. Bound
// by arithmetic; attention_sizes.h says how the work is cut.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_forward.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <omp.h>

#include <cmath>
#include <limits>

#include "kernels/cpu/attention_sizes.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/pair_panel-inl.h"
#include "kernels/cpu/panel-inl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"

#ifndef SHALE_KERNELS_CPU_ATTENTION_FORWARD_ONCE_
#define SHALE_KERNELS_CPU_ATTENTION_FORWARD_ONCE_
namespace shale::cpu {

// One thread's scratch.
struct ForwardScratch {
  ForwardScratch(const AttentionSizes& sizes, Carver& carver)
      : k_panels(carver.Take(sizes.padded_s() * sizes.padded_d())),
        v(carver.Take(sizes.padded_s() * sizes.padded_d())),
        strip(carver.Take(kQueries * sizes.strip_stride())),
        q(carver.Take(kQueries * sizes.padded_d())),
        out(carver.Take(kQueries * sizes.padded_d())) {}

  float* k_panels;  // [S / 32][D][32]
  float* v;         // [S, D]
  float* strip;     // [32, S], scores and then their exponentials
  float* q;         // [32, D], scaled; before that, room to transpose in
  float* out;       // [32, D]
};

}  // namespace shale::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// row[j] = e^(row[j] - largest) for j in [first, end), 0 in the rest of the vectors that cover it. Returns the sum of
// what it wrote, and the log-sum-exp.
struct SoftmaxTotals {
  float sum, lse;
};
HWY_INLINE SoftmaxTotals ExpRow(float* row, int64_t first, int64_t end) {
  FillEdges(row, first, end, -std::numeric_limits<float>::infinity());
  Vector largest = Splat(-std::numeric_limits<float>::infinity());
  ForCoveringVectors(first, end, [&](int64_t i) HWY_ATTR { largest = hn::Max(largest, Load(row + i)); });
  const float shift = MaxOfLanes(largest);
  Vector sum = hn::Zero(Floats());
  ForCoveringVectors(first, end, [&](int64_t i) HWY_ATTR {
    const Vector p = Exp(hn::Sub(Load(row + i), Splat(shift)));
    sum = hn::Add(sum, p);
    Store(p, row + i);
  });
  const float total = SumOfLanes(sum);
  return {total, static_cast<float>(shift + std::log(static_cast<double>(total)))};
}

// kPairs: q k^T of pairs of bf16, of which `q` and `k_panels` then hold D / 2 where there would be D floats.
template <class T, bool kPairs>
void AttentionForwardT(const AttentionForward& op, int64_t b, int64_t h, std::byte* scratch) {
  const AttentionSizes sizes(op.q_BSHD, op.window);
  const int64_t s = sizes.s, d = sizes.d, padded_d = sizes.padded_d(), stride = sizes.strip_stride();
  const int64_t g = h / (op.q_BSHD.dim(2) / op.k_BSGD.dim(2));
  const auto head = [b](const Tensor& t, int64_t at) { return t.as<T>() + b * t.stride(0) + at * t.stride(2); };
  const T* q = head(op.q_BSHD, h);
  T* out = head(op.out_BSHD, h);
  float* lse = op.lse_BHS.as<float>() + (b * op.q_BSHD.dim(2) + h) * s;
  Carver carver(scratch);
  const ForwardScratch own(sizes, carver);

  const int64_t score_d = kPairs ? padded_d / 2 : padded_d;
  if constexpr (kPairs) {
    PackPairsTransposed(head(op.k_BSGD, g), op.k_BSGD.stride(1), s, d, own.k_panels, score_d, /*rows_of_panel=*/own.q);
  } else {
    PackTransposed(head(op.k_BSGD, g), op.k_BSGD.stride(1), s, d, own.k_panels, score_d, /*rows_of_panel=*/own.q);
  }
  if constexpr (kPairs) {
    PackRowPairs(head(op.v_BSGD, g), op.v_BSGD.stride(1), s, d, own.v, padded_d);
  } else {
    PackRows(head(op.v_BSGD, g), op.v_BSGD.stride(1), s, d, 1.0f, own.v, padded_d);
  }

  for (int64_t i0 = 0; i0 < s; i0 += kQueries) {
    const int64_t queries = std::min(kQueries, s - i0);
    if constexpr (kPairs) {
      PackPairs(q + i0 * op.q_BSHD.stride(1), op.q_BSHD.stride(1), queries, d, own.q, score_d);
    } else {
      PackRows(q + i0 * op.q_BSHD.stride(1), op.q_BSHD.stride(1), queries, d, op.scale, own.q, score_d);
    }
    std::fill(own.q + queries * score_d, own.q + RoundUp(queries, kGroup) * score_d, 0.0f);
    // Column 0 of the strip.
    const int64_t origin = RoundDown(sizes.FirstKey(i0), kPanel);
    float inverse_sums[kQueries];
    for (int64_t r = 0; r < queries; r += kGroup) {
      const int64_t first = RoundDown(sizes.FirstKey(i0 + r), kPanel), end = std::min(i0 + r + kGroup, s);
      for (int64_t j = first; j < end; j += kPanel) {
        const float *a = own.q + r * score_d, *panel = own.k_panels + j * score_d;
        float* scores = own.strip + r * stride + j - origin;
        if constexpr (kPairs) {
          MultiplyPairPanel<Operand::kRows, Result::kWrite>(a, score_d, panel, kPanel, (d + 1) / 2, op.scale, scores,
                                                            stride);
        } else {
          MultiplyPanel<Operand::kRows, Result::kWrite>(a, score_d, panel, kPanel, d, scores, stride);
        }
      }
      for (int64_t i = r; i < std::min(r + kGroup, queries); ++i) {
        float* row = own.strip + i * stride;
        const int64_t from = sizes.FirstKey(i0 + i) - origin, to = i0 + i + 1 - origin;
        const SoftmaxTotals totals = ExpRow(row, from, to);
        ZeroAround(row, first - origin, from, to, end - origin);
        // In place: the bf16 of a vector lie before the floats of the next.
        if constexpr (kPairs) {
          ForCoveringVectors(first - origin, end - origin,
                             [&](int64_t c) HWY_ATTR { Store(Load(row + c), reinterpret_cast<BFloat16*>(row) + c); });
        }
        lse[i0 + i] = totals.lse;
        inverse_sums[i] = 1 / totals.sum;
      }
    }
    for (int64_t c = 0; c < padded_d; c += kPanel) {
      for (int64_t r = 0; r < queries; r += kGroup) {
        const int64_t first = sizes.FirstKey(i0 + r), end = std::min(i0 + r + kGroup, s);
        float* to = own.out + r * padded_d + c;
        if constexpr (kPairs) {
          const int64_t pair = first / 2;
          MultiplyPairPanel<Operand::kRows, Result::kWrite>(own.strip + r * stride + pair - origin / 2, stride,
                                                            own.v + pair * padded_d + c, padded_d, (end + 1) / 2 - pair,
                                                            1.0f, to, padded_d);
        } else {
          MultiplyPanel<Operand::kRows, Result::kWrite>(own.strip + r * stride + first - origin, stride,
                                                        own.v + first * padded_d + c, padded_d, end - first, to,
                                                        padded_d);
        }
      }
    }
    for (int64_t i = 0; i < queries; ++i) {
      UnpackRows(own.out + i * padded_d, padded_d, 1, d, inverse_sums[i], out + (i0 + i) * op.out_BSHD.stride(1), 0);
    }
  }
}

// Head h of sequence b.
void AttentionForwardHead(const AttentionForward& op, int64_t b, int64_t h, std::byte* scratch) {
  if (op.q_BSHD.dtype == DType::kFloat32) return AttentionForwardT<float, false>(op, b, h, scratch);
  if (HasPairProducts()) return AttentionForwardT<BFloat16, true>(op, b, h, scratch);
  AttentionForwardT<BFloat16, false>(op, b, h, scratch);
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(AttentionForwardHead);

int64_t ThreadScratchBytes(const AttentionForward& op) {
  Carver carver(nullptr);
  ForwardScratch(AttentionSizes(op.q_BSHD, op.window), carver);
  return carver.size_bytes();
}

}  // namespace

int64_t ScratchBytesOf(const AttentionForward& op, const Context& context) {
  const int64_t items = op.q_BSHD.dim(0) * op.q_BSHD.dim(2);
  return ThreadScratchBytes(op) * std::min<int64_t>(context.threads, items);
}

absl::Status Run(const AttentionForward& op, Scratch scratch, const Context& context) {
  const int64_t heads = op.q_BSHD.dim(2), thread_bytes = ThreadScratchBytes(op);
  const int threads = static_cast<int>(std::min<int64_t>(context.threads, op.q_BSHD.dim(0) * heads));
  ParallelFor(threads, op.q_BSHD.dim(0) * heads, /*block=*/1, [&](int64_t item, int64_t) {
    HWY_DYNAMIC_DISPATCH(AttentionForwardHead)
    (op, item / heads, item % heads, scratch.data + omp_get_thread_num() * thread_bytes);
  });
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
