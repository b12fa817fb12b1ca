// Softmax over the rows of strips of scores, and its gradient.
//
// The functions process columns [begin, end) of a row in full vectors; the range is the same for all rows of a group.
// Scores that the mask hides are -infinity, which the exponentials here turn into 0.

#if defined(SHALE_KERNELS_CPU_ATTENTION_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_ATTENTION_SOFTMAX_INL_H_
#undef SHALE_KERNELS_CPU_ATTENTION_SOFTMAX_INL_H_
#else
#define SHALE_KERNELS_CPU_ATTENTION_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <limits>

#include "kernels/cpu/attention_heads.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/pair_tile-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/integers.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// Sets the columns of [begin, end) that are not in [first, last) to -infinity.
HWY_INLINE void HideColumns(float* row, int64_t begin, int64_t first, int64_t last, int64_t end) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  const Vector hidden = Splat(-std::numeric_limits<float>::infinity());
  for (int64_t i = begin; i < first; i += lanes) {
    const auto outside = hn::FirstN(Floats(), static_cast<size_t>(std::min(lanes, first - i)));
    Store(hn::IfThenElse(outside, hidden, Load(row + i)), row + i);
  }
  for (int64_t i = RoundDown(last, lanes); i < end; i += lanes) {
    const auto inside = hn::FirstN(Floats(), static_cast<size_t>(std::max<int64_t>(0, last - i)));
    Store(hn::IfThenElse(inside, Load(row + i), hidden), row + i);
  }
}

// Turns scores into capped ones: row[i] = cap tanh(row[i] * inner), where inner is 1 / cap, times the scale of the
// scores if the row does not have it yet.
HWY_INLINE void CapRow(float* row, int64_t begin, int64_t end, float inner, float cap) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  for (int64_t i = begin; i < end; i += lanes) {
    Store(hn::Mul(Splat(cap), Tanh(hn::Mul(Load(row + i), Splat(inner)))), row + i);
  }
}

// Does the same to `p`, and multiplies the distance of ds from delta by the derivative of the cap: the functions below
// then compute the gradient of the scores before the cap.
HWY_INLINE void CapRowBackward(float* p, float* ds, int64_t begin, int64_t end, float inner, float cap, float delta) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  for (int64_t i = begin; i < end; i += lanes) {
    const Vector t = Tanh(hn::Mul(Load(p + i), Splat(inner)));
    Store(hn::Mul(Splat(cap), t), p + i);
    const Vector distance = hn::Sub(Load(ds + i), Splat(delta));
    Store(hn::MulAdd(distance, hn::NegMulAdd(t, t, Splat(1.0f)), Splat(delta)), ds + i);
  }
}

HWY_INLINE float LargestOf(const float* row, int64_t begin, int64_t end) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  // Two vectors, since each comparison waits for the one before. The loop may leave the last vector of the row.
  Vector a = Load(row + begin), b = Load(row + end - lanes);
  for (int64_t i = begin + lanes; i + 2 * lanes <= end; i += 2 * lanes) {
    a = hn::Max(a, Load(row + i));
    b = hn::Max(b, Load(row + i + lanes));
  }
  return MaxOfLanes(hn::Max(a, b));
}

// Sets row[i] = e^(row[i] - shift), and returns their sum.
HWY_INLINE float ExpRow(float* row, int64_t begin, int64_t end, float shift) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  Vector sum = hn::Zero(Floats());
  for (int64_t i = begin; i < end; i += lanes) {
    const Vector p = Exp(hn::Sub(Load(row + i), Splat(shift)));
    sum = hn::Add(sum, p);
    Store(p, row + i);
  }
  return SumOfLanes(sum);
}

// Turns `p` from scores into probabilities, and `ds` from d_out v^T into the gradient of the scores.
HWY_INLINE void SoftmaxBackwardRow(float* p, float* ds, int64_t begin, int64_t end, float lse, float delta) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  for (int64_t i = begin; i < end; i += lanes) {
    const Vector probability = Exp(hn::Sub(Load(p + i), Splat(lse)));
    Store(probability, p + i);
    Store(hn::Mul(probability, hn::Sub(Load(ds + i), Splat(delta))), ds + i);
  }
}

// lse and delta of the rows of a strip. Rows past the last query have values that make their probabilities and
// gradients 0.
template <int64_t kRows>
struct RowTerms {
  float lse[kRows], delta[kRows];
};

// Returns the terms of `rows` rows, of which the first `queries` are queries from i0 on.
template <int64_t kRows, class T>
HWY_INLINE RowTerms<kRows> TermsOf(const BackwardHead<T>& head, int64_t i0, int64_t queries, int64_t rows, int64_t d) {
  RowTerms<kRows> terms;
  for (int64_t i = 0; i < rows; ++i) {
    const auto add_product = [](Vector sum, Vector x, Vector y) HWY_ATTR { return hn::MulAdd(x, y, sum); };
    const bool is_query = i < queries;
    terms.lse[i] = is_query ? head.lse[i0 + i] : std::numeric_limits<float>::infinity();
    terms.delta[i] = is_query ? SumOfLanes(Fold(d, add_product, head.d_out[i0 + i], head.out[i0 + i])) : 0;
  }
  return terms;
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

// Variants of these functions whose results are bf16, for matmuls of pairs.
#if HWY_TARGET == HWY_AVX3
HWY_PUSH_ATTRIBUTES(HWY_TARGET_STR ",avx512bf16")
namespace shale::cpu::HWY_NAMESPACE {

// Like ExpRow for row[i] * scale, in place: the bf16 results of a vector lie before the floats of the next vector.
// Returns the sum of the values before rounding.
inline float ExpRowRounded(float* row, int64_t begin, int64_t end, float scale, float shift) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  BFloat16* rounded = reinterpret_cast<BFloat16*>(row);
  Vector sum = hn::Zero(Floats());
  for (int64_t i = begin; i < end; i += lanes) {
    const Vector p = Exp(hn::MulSub(Load(row + i), Splat(scale), Splat(shift)));
    sum = hn::Add(sum, p);
    StoreRounded(p, rounded + i);
  }
  return SumOfLanes(sum);
}

// Processes two rows, `stride` apart, whose scores are p * scale. The first row of `p` and of `ds` becomes the pairs of
// both rows. `ds_rows` receives ds of the first row as pairs along the row, and, `ds_rows_stride` further on, that of
// the second row.
inline void SoftmaxBackwardPairRows(float* p, float* ds, int64_t stride, int64_t begin, int64_t end, float scale,
                                    const float* lse, const float* delta, BFloat16* ds_rows, int64_t ds_rows_stride) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(Floats()));
  for (int64_t i = begin; i < end; i += lanes) {
    const Vector p0 = Exp(hn::MulSub(Load(p + i), Splat(scale), Splat(lse[0])));
    const Vector p1 = Exp(hn::MulSub(Load(p + stride + i), Splat(scale), Splat(lse[1])));
    const Vector ds0 = hn::Mul(p0, hn::Sub(Load(ds + i), Splat(delta[0])));
    const Vector ds1 = hn::Mul(p1, hn::Sub(Load(ds + stride + i), Splat(delta[1])));
    Store(PairsOf(p0, p1), p + i);
    Store(PairsOf(ds0, ds1), ds + i);
    StoreRounded(ds0, ds_rows + i);
    StoreRounded(ds1, ds_rows + ds_rows_stride + i);
  }
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_POP_ATTRIBUTES
#else
HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {
inline float ExpRowRounded(float*, int64_t, int64_t, float, float) { return 0; }
inline void SoftmaxBackwardPairRows(float*, float*, int64_t, int64_t, int64_t, float, const float*, const float*,
                                    BFloat16*, int64_t) {}
}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif

#endif
