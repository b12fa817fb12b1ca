// The exponential function and the hyperbolic tangent, for softmax and activations. Highway's own returns 0 for NaN.
// Here NaN stays NaN, because a failed step is noticed by its NaNs.

#if defined(SHALE_KERNELS_CPU_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_EXP_INL_H_
#undef SHALE_KERNELS_CPU_EXP_INL_H_
#else
#define SHALE_KERNELS_CPU_EXP_INL_H_
#endif

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// Returns x - n ln 2. ln 2 is split into two parts, the first with so few bits that n times it is exact.
HWY_INLINE Vector LessMultipleOfLn2(Vector x, Vector n) {
  return hn::NegMulAdd(n, Splat(-2.12194440e-4f), hn::NegMulAdd(n, Splat(0.693359375f), x));
}

// Returns e^x for x up to 88, to within 1.5 units in the last place; 0 for -infinity; NaN for NaN. From 88 to 88.8 Exp
// may, and at 88.8 it does, return infinity; greater x are not supported. Exp may return 0 where the result would be
// subnormal. It uses e^x = 2^n e^r, where n is x / ln 2, rounded, and r = x - n ln 2.
#if HWY_TARGET == HWY_AVX3
// n is rounded to a multiple of 1/16, so |r| < 0.022 and three terms of the series are enough. scalef multiplies by 2
// to the power of the integer below n; the rest of 2^n comes from the table.
HWY_INLINE Vector Exp(Vector x) {
  // 2^(i / 16).
  const __m512 powers = _mm512_setr_ps(1.0f, 1.04427373f, 1.09050775f, 1.13878858f, 1.18920708f, 1.24185777f,
                                       1.29683959f, 1.35425556f, 1.41421354f, 1.47682619f, 1.54221082f, 1.61049032f,
                                       1.68179286f, 1.75625217f, 1.8340081f, 1.91520655f);
  // e^x is 0 below -104. The mask keeps such lanes from scalef, which takes some 200 cycles if any result is below the
  // normal numbers, even if it becomes 0; hidden scores would cost that. The comparison is true for NaN.
  const __mmask16 not_zero = _mm512_cmp_ps_mask(x.raw, _mm512_set1_ps(-104.0f), _CMP_NLT_UQ);
  // Adding 1.5 x 2^19 rounds a small number to a multiple of 1/16, whose fraction is then in the lowest bits of the
  // sum.
  const Vector shift = Splat(786432.0f);
  const Vector shifted = hn::MulAdd(x, Splat(1.44269504f), shift);
  const Vector n = hn::Sub(shifted, shift);
  const Vector power{_mm512_permutexvar_ps(_mm512_castps_si512(shifted.raw), powers)};
  const Vector r = LessMultipleOfLn2(x, n);
  const Vector series = hn::MulAdd(hn::MulAdd(Splat(1.66666672e-1f), r, Splat(0.5f)), r, Splat(1.0f));
  return Vector{_mm512_maskz_scalef_ps(not_zero, hn::MulAdd(hn::Mul(r, series), power, power).raw, n.raw)};
}
#else
// n is rounded to an integer, so |r| < 0.3466. The polynomial 1 + r + r^2 q(r) has the least relative error there that
// one of degree 6 can have, 3.1e-9.
HWY_INLINE Vector Exp(Vector x) {
  const Floats d;
  // Adding 1.5 x 2^23 + 127 rounds a small number to an integer n. The lowest bits of the sum are then n + 127, which
  // is the biased exponent of 2^n.
  const Vector shift = Splat(12583039.0f);
  const Vector shifted = hn::MulAdd(x, Splat(1.44269504f), shift);
  const Vector r = LessMultipleOfLn2(x, hn::Sub(shifted, shift));
  // Computes 1 + r + r^2 q(r) in this order because each step of Horner's rule would wait for the one before, and only
  // the last two roundings would count in either.
  const Vector r2 = hn::Mul(r, r);
  const Vector low = hn::MulAdd(Splat(1.66665206e-1f), r, Splat(4.99999934e-1f));
  const Vector middle = hn::MulAdd(Splat(8.3687254e-3f), r, Splat(4.1668389e-2f));
  const Vector q = hn::MulAdd(hn::MulAdd(Splat(1.3814581e-3f), r2, middle), r2, low);
  const Vector p = hn::Add(hn::MulAdd(q, r2, r), Splat(1.0f));
  // The bit shift drops the bits above those of n + 127.
  const auto power = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(Bits(), shifted)));
  return hn::IfThenZeroElse(hn::Lt(x, Splat(-87.33f)), hn::Mul(p, power));
}
#endif

// Returns tanh(x), to within 3 units in the last place. NaN stays NaN. Near 0 it is a polynomial of odd powers
// (Moshier, Cephes), because 1 - 2 / (e^2x + 1) would cancel.
HWY_INLINE Vector Tanh(Vector x) {
  const Vector limit = Splat(44.0f), size = hn::Abs(x);
  const Vector a = hn::IfThenElse(hn::Gt(size, limit), limit, size);
  const Vector far = hn::Sub(Splat(1.0f), hn::Div(Splat(2.0f), hn::Add(Exp(hn::Add(a, a)), Splat(1.0f))));
  const Vector a2 = hn::Mul(a, a);
  Vector p = Splat(-5.70498872745e-3f);
  for (const float c : {2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f}) {
    p = hn::MulAdd(p, a2, Splat(c));
  }
  const Vector near = hn::MulAdd(hn::Mul(p, a2), a, a);
  return hn::CopySign(hn::IfThenElse(hn::Lt(a, Splat(0.625f)), near, far), x);
}

// Returns `v` with `fill` in the lanes that were not loaded from memory.
HWY_INLINE Vector FillRest(Full, Vector v, float fill) { return v; }
HWY_INLINE Vector FillRest(Partial lanes, Vector v, float fill) {
  return hn::IfThenElse(hn::FirstN(Floats(), lanes.n), v, Splat(fill));
}

HWY_INLINE float MaxOfLanes(Vector v) { return hn::GetLane(hn::MaxOfLanes(Floats(), v)); }

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
