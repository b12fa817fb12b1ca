// The exponential of a softmax. Highway's own returns 0 for a NaN; a NaN among scores must stay one, for it is how a
// step that went wrong is noticed.

#if defined(SHALE_KERNELS_CPU_EXP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_EXP_INL_H_
#undef SHALE_KERNELS_CPU_EXP_INL_H_
#else
#define SHALE_KERNELS_CPU_EXP_INL_H_
#endif

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// e^r for |r| < 0.35: the polynomial of Cephes' expf (Moshier).
HWY_INLINE Vector ExpOfSmall(Vector r) {
  Vector p = hn::MulAdd(Splat(1.9875691500e-4f), r, Splat(1.3981999507e-3f));
  p = hn::MulAdd(p, r, Splat(8.3334519073e-3f));
  p = hn::MulAdd(p, r, Splat(4.1665795894e-2f));
  p = hn::MulAdd(p, r, Splat(1.6666665459e-1f));
  p = hn::MulAdd(p, r, Splat(5.0000001201e-1f));
  p = hn::MulAdd(p, r, Splat(1.0f));
  return hn::MulAdd(p, r, Splat(1.0f));
}

// x - n ln 2, with ln 2 in two parts, the first of so few bits that n times it is exact.
HWY_INLINE Vector LessMultipleOfLn2(Vector x, Vector n) {
  return hn::NegMulAdd(n, Splat(-2.12194440e-4f), hn::NegMulAdd(n, Splat(0.693359375f), x));
}

// e^x for x up to 88, to within a unit in the last place; 0 for -infinity; NaN for NaN. Where the result would be
// subnormal it may be 0. With n = round(x / ln 2) and r = x - n ln 2: e^x = 2^n e^r.
#if HWY_TARGET == HWY_AVX3
HWY_INLINE Vector Exp(Vector x) {
  // From -110 on down e^x is 0 all the same. The second operand is what comes of a NaN.
  x.raw = _mm512_max_ps(_mm512_set1_ps(-110.0f), x.raw);
  const Vector n = hn::Round(hn::Mul(x, Splat(1.44269504f)));
  return Vector{_mm512_scalef_ps(ExpOfSmall(LessMultipleOfLn2(x, n)).raw, n.raw)};
}
#else
HWY_INLINE Vector Exp(Vector x) {
  const Floats d;
  const hn::RebindToSigned<Floats> di;
  // Added to 1.5 x 2^23 a small number is rounded to an integer, which stands in the lowest bits of the sum.
  const Vector shift = Splat(12582912.0f);
  const Vector shifted = hn::MulAdd(x, Splat(1.44269504f), shift);
  const Vector e = ExpOfSmall(LessMultipleOfLn2(x, hn::Sub(shifted, shift)));
  // The bits above those of n are shifted out.
  const auto power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(hn::BitCast(di, shifted), hn::Set(di, 127))));
  return hn::IfThenZeroElse(hn::Lt(x, Splat(-87.33f)), hn::Mul(e, power));
}
#endif

// `v` with the lanes that memory did not fill set to `fill`.
HWY_INLINE Vector FillRest(Full, Vector v, float fill) { return v; }
HWY_INLINE Vector FillRest(Partial lanes, Vector v, float fill) {
  return hn::IfThenElse(hn::FirstN(Floats(), lanes.n), v, Splat(fill));
}

HWY_INLINE float MaxOfLanes(Vector v) { return hn::GetLane(hn::MaxOfLanes(Floats(), v)); }

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
