// The activations, SiLU and GELU by the tanh formula and by erf, and the gates that use them. The ops of activations
// and the conversion to fp8 share them. A kernel file includes it once per instruction set, like simd-inl.h.

#if defined(SHALE_KERNELS_CPU_ACTIVATION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_ACTIVATION_INL_H_
#undef SHALE_KERNELS_CPU_ACTIVATION_INL_H_
#else
#define SHALE_KERNELS_CPU_ACTIVATION_INL_H_
#endif

#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// s = sigmoid(x) and complement = 1 - s, both without cancellation. With e = exp(-x) they are 1 / (1 + e) and
// e / (1 + e). Where e overflows, s is 0, and complement is wrong but finite; everybody multiplies it by s. NaN stays
// NaN.
struct Sigmoid {
  Vector s, complement;
};
HWY_INLINE Sigmoid SigmoidOf(Vector x) {
  const Vector e = Exp(hn::Neg(hn::Max(Splat(-88.8f), x)));
  const Vector s = hn::Div(Splat(1.0f), hn::Add(Splat(1.0f), e));
  return {s, hn::Mul(hn::Min(Splat(1e38f), e), s)};
}

// The value of an activation and its derivative.
struct ValueAndSlope {
  Vector value, slope;
};

constexpr float kTwiceSqrt2OverPi = 1.5957691216057308f;
constexpr float kCubic = 0.044715f;

// GELU by the tanh formula is x sigmoid(2 z), z = sqrt(2/pi) (x + 0.044715 x^3). Beyond |x| = 50 the sigmoid is 0 or 1
// to the last bit. There z is computed for |x| = 50, so that no overflow is multiplied by zero.
struct TanhGelu {
  static HWY_INLINE Vector Clamped(Vector x) {  // NaN stays NaN.
    const Vector limit = Splat(50.0f);
    return hn::IfThenElse(hn::Gt(hn::Abs(x), limit), hn::CopySign(limit, x), x);
  }
  static HWY_INLINE Vector TwiceZ(Vector x, Vector x2) {
    return hn::Mul(hn::Mul(Splat(kTwiceSqrt2OverPi), x), hn::MulAdd(Splat(kCubic), x2, Splat(1.0f)));
  }
  static HWY_INLINE Vector Value(Vector x) {
    const Vector xc = Clamped(x);
    return hn::Mul(x, SigmoidOf(TwiceZ(xc, hn::Mul(xc, xc))).s);
  }
  static HWY_INLINE ValueAndSlope Both(Vector x) {
    const Vector xc = Clamped(x);
    const Vector x2 = hn::Mul(xc, xc);
    const Sigmoid sigmoid = SigmoidOf(TwiceZ(xc, x2));
    const Vector slope = hn::Mul(Splat(kTwiceSqrt2OverPi), hn::MulAdd(Splat(3 * kCubic), x2, Splat(1.0f)));
    return {hn::Mul(x, sigmoid.s), hn::MulAdd(hn::Mul(hn::Mul(xc, slope), sigmoid.s), sigmoid.complement, sigmoid.s)};
  }
};

// x Phi(x). The tail Phi(-a), a >= 0, is e^(-a^2 / 2) P(t) with t = 1 / (1 + 0.3 a) and a polynomial P of degree 8. P
// is fitted for the smallest relative error on a < 13.5, which is 2.7e-7 in fp32. Rounding a^2 / 2 adds up to a^2 / 2
// units of 2^-24.
struct ErfGelu {
  struct Normal {
    Vector tail, density;  // Phi(-|x|) and e^(-x^2 / 2).
  };
  static HWY_INLINE Normal NormalOf(Vector x) {
    const Vector a = hn::Min(Splat(100.0f), hn::Abs(x));  // e^(-a^2 / 2) is 0 long before 100.
    const Vector t = hn::Div(Splat(1.0f), hn::MulAdd(Splat(0.3f), a, Splat(1.0f)));
    Vector p = Splat(0.03593175485730171f);
    for (const float c : {-0.15827608108520508f, 0.20820671319961548f, -0.05539394170045853f, 0.12946924567222595f,
                          0.0996374785900116f, 0.12079835683107376f, 0.11962638795375824f}) {
      p = hn::MulAdd(p, t, Splat(c));
    }
    const Vector density = Exp(hn::Mul(Splat(-0.5f), hn::Mul(a, a)));
    return {hn::Mul(hn::Mul(p, t), density), density};
  }
  static HWY_INLINE Vector Phi(Vector x, Vector tail) {
    return hn::IfThenElse(hn::Lt(x, hn::Zero(Floats())), tail, hn::Sub(Splat(1.0f), tail));
  }
  static HWY_INLINE Vector Value(Vector x) { return hn::Mul(x, Phi(x, NormalOf(x).tail)); }
  static HWY_INLINE ValueAndSlope Both(Vector x) {
    const Normal normal = NormalOf(x);
    const Vector phi = Phi(x, normal.tail);
    constexpr float kInverseSqrt2Pi = 0.3989422804014327f;
    return {hn::Mul(x, phi), hn::MulAdd(hn::Mul(x, Splat(kInverseSqrt2Pi)), normal.density, phi)};
  }
};

// silu(x) = x s, silu' = s + x s (1 - s), with s = sigmoid(x).
struct Silu {
  static HWY_INLINE Vector Value(Vector x) { return hn::Mul(x, SigmoidOf(x).s); }
  static HWY_INLINE ValueAndSlope Both(Vector x) {
    const Sigmoid sigmoid = SigmoidOf(x);
    const Vector silu = hn::Mul(x, sigmoid.s);
    return {silu, hn::MulAdd(silu, sigmoid.complement, sigmoid.s)};
  }
};

// Return y = act(gate) * up, and its gradients with respect to gate and up, of which d is that of y.
template <class Gate>
HWY_INLINE Vector GatedValue(Vector g, Vector up) {
  return hn::Mul(Gate::Value(g), up);
}
struct GateGradients {
  Vector gate, up;
};
HWY_INLINE GateGradients GradientsOf(const ValueAndSlope& of, Vector up, Vector d) {
  return {hn::Mul(hn::Mul(d, up), of.slope), hn::Mul(d, of.value)};
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
