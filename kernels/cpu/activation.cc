// SwiGLU, GEGLU and GELU, forward and backward.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cc"
#include "kernels/ops/activation.h"

#include <algorithm>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/activation-inl.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/exp-inl.h"
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
