// SwiGLU, GEGLU and GELU, forward and backward.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cc"
#include "kernels/ops/activation.h"

#include <algorithm>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/gate-inl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_prefetch.h"
#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// Calls body(i, count) for pieces of a row of `f` gates followed by `f` ups. Before each call it prefetches the same
// piece of the next row, because hardware prefetchers lose track at the end of each half.
constexpr int64_t kPiece = 128;
template <class T, class Body>
HWY_INLINE void ForPieces(const T* gate, int64_t f, bool has_next, const Body& body) {
  for (int64_t i = 0; i < f; i += kPiece) {
    const int64_t count = std::min(kPiece, f - i);
    if (has_next) {
      PrefetchElements(gate + 2 * f + i, count);
      PrefetchElements(gate + 3 * f + i, count);
    }
    body(i, count);
  }
}

template <class Gate, class T>
void SwiGluForwardT(const SwiGluForward& op, int64_t begin, int64_t end) {
  const int64_t f = op.y_TF.dim(1);
  for (int64_t t = begin; t < end; ++t) {
    const T* gate = op.gate_up_T2F.as<const T>() + t * 2 * f;
    const T* up = gate + f;
    T* y = op.y_TF.as<T>() + t * f;
    const auto swiglu = [](Vector g, Vector u) HWY_ATTR { return GatedValue<Gate>(g, u); };
    ForPieces(gate, f, t + 1 < op.y_TF.dim(0),
              [&](int64_t i, int64_t count) HWY_ATTR { Map(count, swiglu, y + i, gate + i, up + i); });
  }
}

template <class Gate, class T, bool kValueToo>
void SwiGluBackwardT(const SwiGluBackward& op, int64_t begin, int64_t end) {
  const int64_t f = op.d_y_TF.dim(1);
  for (int64_t t = begin; t < end; ++t) {
    const T* gate = op.gate_up_T2F.as<const T>() + t * 2 * f;
    const T* d_y = op.d_y_TF.as<const T>() + t * f;
    T* d_gate = op.d_gate_up_T2F.as<T>() + t * 2 * f;
    const auto gradient = [](Vector g, Vector up, Vector d) HWY_ATTR {
      const ValueAndSlope of = Gate::Both(g);
      const GateGradients gradients = GradientsOf(of, up, d);
      if constexpr (kValueToo) {
        return Triple{gradients.gate, gradients.up, hn::Mul(of.value, up)};
      } else {
        return Pair{gradients.gate, gradients.up};
      }
    };
    ForPieces(gate, f, t + 1 < op.d_y_TF.dim(0), [&](int64_t i, int64_t count) HWY_ATTR {
      if constexpr (kValueToo) {
        T* y = op.y_TF.as<T>() + t * f;
        Map3(count, gradient, d_gate + i, d_gate + f + i, y + i, gate + i, gate + f + i, d_y + i);
      } else {
        Map2(count, gradient, d_gate + i, d_gate + f + i, gate + i, gate + f + i, d_y + i);
      }
    });
  }
}

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

template <class Kind, class T>
void GeluForwardT(const GeluForward& op, int64_t begin, int64_t end) {
  const T* x = op.x_TF.as<const T>() + begin;
  T* y = op.y_TF.as<T>() + begin;
  Map(
      end - begin, [](Vector v) HWY_ATTR { return Kind::Value(v); }, y, x);
}

template <class Kind, class T>
void GeluBackwardT(const GeluBackward& op, int64_t begin, int64_t end) {
  const T* x = op.x_TF.as<const T>() + begin;
  const T* d_y = op.d_y_TF.as<const T>() + begin;
  T* d_x = op.d_x_TF.as<T>() + begin;
  if (!op.y_TF.present()) {
    const auto chain = [](Vector d, Vector v) HWY_ATTR { return hn::Mul(d, Kind::Both(v).slope); };
    Map(end - begin, chain, d_x, d_y, x);
    return;
  }
  const auto both = [](Vector d, Vector v) HWY_ATTR {
    const ValueAndSlope of = Kind::Both(v);
    return Pair{hn::Mul(d, of.slope), of.value};
  };
  Map2(end - begin, both, d_x, op.y_TF.as<T>() + begin, d_y, x);
}

// The SwiGlu functions compute rows [begin, end).
void SwiGluForwardRows(const SwiGluForward& op, int64_t begin, int64_t end) {
  ForActivations(op.y_TF.dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    op.gate == GateKind::kSilu ? SwiGluForwardT<Silu, T>(op, begin, end) : SwiGluForwardT<TanhGelu, T>(op, begin, end);
  });
}
template <class Gate, class T>
void SwiGluBackwardWith(const SwiGluBackward& op, int64_t begin, int64_t end) {
  op.y_TF.present() ? SwiGluBackwardT<Gate, T, true>(op, begin, end) : SwiGluBackwardT<Gate, T, false>(op, begin, end);
}
template <class T>
void SwiGluBackwardOf(const SwiGluBackward& op, int64_t begin, int64_t end) {
  op.gate == GateKind::kSilu ? SwiGluBackwardWith<Silu, T>(op, begin, end)
                             : SwiGluBackwardWith<TanhGelu, T>(op, begin, end);
}
void SwiGluBackwardRows(const SwiGluBackward& op, int64_t begin, int64_t end) {
  ForActivations(op.d_y_TF.dtype, [&](auto element) HWY_ATTR { SwiGluBackwardOf<decltype(element)>(op, begin, end); });
}
// The Gelu functions compute elements [begin, end).
void GeluForwardElements(const GeluForward& op, int64_t begin, int64_t end) {
  ForActivations(op.x_TF.dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    op.kind == GeluKind::kTanh ? GeluForwardT<TanhGelu, T>(op, begin, end) : GeluForwardT<ErfGelu, T>(op, begin, end);
  });
}
void GeluBackwardElements(const GeluBackward& op, int64_t begin, int64_t end) {
  ForActivations(op.x_TF.dtype, [&](auto element) HWY_ATTR {
    using T = decltype(element);
    op.kind == GeluKind::kTanh ? GeluBackwardT<TanhGelu, T>(op, begin, end) : GeluBackwardT<ErfGelu, T>(op, begin, end);
  });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {

HWY_EXPORT(SwiGluForwardRows);
HWY_EXPORT(SwiGluBackwardRows);
HWY_EXPORT(GeluForwardElements);
HWY_EXPORT(GeluBackwardElements);

absl::Status Run(const SwiGluForward& op, Scratch scratch, const Context& context) {
  ParallelFor(*context.team, op.y_TF.dim(0), RowsPerBlock(op.y_TF.dim(1)), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(SwiGluForwardRows)(op, begin, end);
  });
  return absl::OkStatus();
}

absl::Status Run(const SwiGluBackward& op, Scratch scratch, const Context& context) {
  ParallelFor(*context.team, op.d_y_TF.dim(0), RowsPerBlock(op.d_y_TF.dim(1)), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(SwiGluBackwardRows)(op, begin, end);
  });
  return absl::OkStatus();
}

absl::Status Run(const GeluForward& op, Scratch scratch, const Context& context) {
  ParallelFor(*context.team, op.x_TF.elements(), kElementsPerBlock, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(GeluForwardElements)(op, begin, end);
  });
  return absl::OkStatus();
}

absl::Status Run(const GeluBackward& op, Scratch scratch, const Context& context) {
  ParallelFor(*context.team, op.x_TF.elements(), kElementsPerBlock, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(GeluBackwardElements)(op, begin, end);
  });
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
