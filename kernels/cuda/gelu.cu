// GELU by the tanh formula and by erf, forward and backward.
//
// The kernels make one pass over flat vectors (see flat.h) and are bound by memory. Each pack is read from all inputs
// before it is written, so that d_x may be d_y, and y may be x.
#include "kernels/cuda/activation.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/ops/activation.h"

namespace shale::cuda {
namespace {

template <class Kind, class T, int N>
SHALE_KERNEL SHALE_BOUNDS(kFlatThreads) GeluForwardKernel(Global<T> x, Global<T> y, int64_t n) {
  ForEachFlatPiece<N>(
      n,
      [&](auto width, int64_t i) {
        constexpr int kCount = decltype(width)::value;
        Floats<kCount> values = LoadFloats<kCount>(x, i);
        SHALE_UNROLL
        for (int k = 0; k < kCount; ++k) values.at[k] = Kind::Value(values.at[k]);
        return values;
      },
      [&](auto width, int64_t i, const auto& values) { StoreFloats(y, i, values); });
}

template <int N>
struct GradientsAndValues {
  Floats<N> gradients, values;
};

template <class Kind, class T, int N>
SHALE_KERNEL SHALE_BOUNDS(kFlatThreads)
    GeluBackwardKernel(Global<T> x, Global<T> d_y, Global<T> d_x, Global<T> y, int64_t n) {
  ForEachFlatPiece<N>(
      n,
      [&](auto width, int64_t i) {
        constexpr int kCount = decltype(width)::value;
        GradientsAndValues<kCount> piece{LoadFloats<kCount>(d_y, i), LoadFloats<kCount>(x, i)};
        SHALE_UNROLL
        for (int k = 0; k < kCount; ++k) {
          piece.gradients.at[k] *= Kind::Derivative(piece.values.at[k]);
          if (y.present()) piece.values.at[k] = Kind::Value(piece.values.at[k]);
        }
        return piece;
      },
      [&](auto width, int64_t i, const auto& piece) {
        StoreFloats(d_x, i, piece.gradients);
        if (y.present()) StoreFloats(y, i, piece.values);
      });
}

// Calls start(Kind(), T(), Width) with packs of 16 bytes if operands are `aligned`, else with single elements.
template <class Start>
absl::Status WithKind(GeluKind kind, DType act, bool aligned, const Start& start) {
  return WithElement(act, [&](auto element) {
    return WithWidth<kPackOf<decltype(element)>>(aligned, [&](auto width) {
      return kind == GeluKind::kTanh ? start(TanhGelu(), element, width) : start(ErfGelu(), element, width);
    });
  });
}

}  // namespace

absl::Status Run(const GeluForward& op, Scratch scratch, StreamHandle stream) {
  const int64_t n = op.x_TF.elements();
  const bool aligned = Aligned16(op.x_TF) && Aligned16(op.y_TF);
  return WithKind(op.kind, op.x_TF.dtype, aligned, [&](auto kind, auto element, auto width) {
    using T = decltype(element);
    return Launch("GeluForward", GeluForwardKernel<decltype(kind), T, decltype(width)::value>, FlatShape(n), stream,
                  Whole<T>(op.x_TF, "x"), Whole<T>(op.y_TF, "y"), n);
  });
}

absl::Status Run(const GeluBackward& op, Scratch scratch, StreamHandle stream) {
  const int64_t n = op.x_TF.elements();
  const bool aligned = Aligned16(op.x_TF) && Aligned16(op.d_y_TF) && Aligned16(op.d_x_TF) && Aligned16(op.y_TF);
  return WithKind(op.kind, op.x_TF.dtype, aligned, [&](auto kind, auto element, auto width) {
    using T = decltype(element);
    return Launch("GeluBackward", GeluBackwardKernel<decltype(kind), T, decltype(width)::value>, FlatShape(n), stream,
                  Whole<T>(op.x_TF, "x"), Whole<T>(op.d_y_TF, "d_y"), Whole<T>(op.d_x_TF, "d_x"),
                  Whole<T>(op.y_TF, "y"), n);
  });
}

}  // namespace shale::cuda
