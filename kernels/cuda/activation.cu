// SwiGLU and GEGLU, forward and backward.
//
// The kernels make one pass and are bound by memory. A thread owns a pack of columns of one row and reads all of it
// before it writes, so that d_gate_up may be gate_up, and y may be d_y. blockIdx.x is the row, because only x of a grid
// can be large enough.
#include "kernels/cuda/flat.h"
#include "kernels/cuda/gate.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/integers.h"
#include "kernels/ops/activation.h"

namespace shale::cuda {
namespace {

constexpr int kThreads = 128;

template <class Gate, class T, int N>
SHALE_KERNEL SHALE_BOUNDS(kThreads) SwiGluForwardKernel(Global<T> gate_up_T2F, Global<T> y_TF, int64_t F) {
  const int64_t t = blockIdx.x, f = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  if (f >= F) return;
  Pack<T, N> gate = gate_up_T2F.template Load<N>(t * 2 * F + f);
  const Pack<T, N> up = gate_up_T2F.template Load<N>(t * 2 * F + F + f);
  for (int i = 0; i < N; ++i) {
    const float g = Widen(gate.at[i]);
    gate.at[i] = Narrow<T>(GatedValue(Gate::Of(g), g, Widen(up.at[i])));
  }
  y_TF.template Store<N>(t * F + f, gate);
}

// If y is present, it is computed as in the forward kernel, to the bit.
template <class Gate, class T, int N>
SHALE_KERNEL SHALE_BOUNDS(kThreads)
    SwiGluBackwardKernel(Global<T> gate_up_T2F, Global<T> d_y_TF, Global<T> d_gate_up_T2F, Global<T> y_TF, int64_t F) {
  const int64_t t = blockIdx.x, f = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * N;
  if (f >= F) return;
  const int64_t gate_at = t * 2 * F + f, up_at = gate_at + F;
  Pack<T, N> gate = gate_up_T2F.template Load<N>(gate_at);
  Pack<T, N> up = gate_up_T2F.template Load<N>(up_at);
  Pack<T, N> y = d_y_TF.template Load<N>(t * F + f);
  for (int i = 0; i < N; ++i) {
    const float g = Widen(gate.at[i]), u = Widen(up.at[i]), d = Widen(y.at[i]);
    const GateParts parts = Gate::Of(g);
    gate.at[i] = Narrow<T>(GateGradient(parts, u, d));
    up.at[i] = Narrow<T>(UpGradient(parts, g, d));
    y.at[i] = Narrow<T>(GatedValue(parts, g, u));
  }
  if (y_TF.present()) y_TF.template Store<N>(t * F + f, y);
  d_gate_up_T2F.template Store<N>(gate_at, gate);
  d_gate_up_T2F.template Store<N>(up_at, up);
}

// Calls start(Gate(), T(), Width) with packs of 16 bytes if rows and halves of rows begin at 16-byte addresses, else
// with single elements.
template <class Start>
absl::Status WithPacks(GateKind gate, bool aligned, DType act, int64_t F, const Start& start) {
  return WithElement(act, [&](auto element) {
    constexpr int kPack = kPackOf<decltype(element)>;
    return WithWidth<kPack>(aligned && F % kPack == 0, [&](auto width) {
      return gate == GateKind::kSilu ? start(SiluGate(), element, width) : start(TanhGeluGate(), element, width);
    });
  });
}

LaunchShape ShapeFor(int64_t T, int64_t F, int pack) {
  const int64_t columns = static_cast<int64_t>(kThreads) * pack;
  return {.grid = dim3(T, static_cast<unsigned>(CeilDivide(F, columns))), .block = dim3(kThreads)};
}

}  // namespace

absl::Status Run(const SwiGluForward& op, Scratch scratch, StreamHandle stream) {
  const int64_t F = op.y_TF.dim(1);
  const bool aligned = RowsAligned(op.gate_up_T2F) && RowsAligned(op.y_TF);
  return WithPacks(op.gate, aligned, op.y_TF.dtype, F, [&](auto gate, auto element, auto pack) {
    using T = decltype(element);
    constexpr int N = decltype(pack)::value;
    return Launch("SwiGluForward", SwiGluForwardKernel<decltype(gate), T, N>, ShapeFor(op.y_TF.dim(0), F, N), stream,
                  Whole<T>(op.gate_up_T2F, "gate_up"), Whole<T>(op.y_TF, "y"), F);
  });
}

absl::Status Run(const SwiGluBackward& op, Scratch scratch, StreamHandle stream) {
  const int64_t F = op.d_y_TF.dim(1);
  const bool aligned =
      RowsAligned(op.gate_up_T2F) && RowsAligned(op.d_y_TF) && RowsAligned(op.d_gate_up_T2F) && RowsAligned(op.y_TF);
  return WithPacks(op.gate, aligned, op.d_y_TF.dtype, F, [&](auto gate, auto element, auto pack) {
    using T = decltype(element);
    constexpr int N = decltype(pack)::value;
    return Launch("SwiGluBackward", SwiGluBackwardKernel<decltype(gate), T, N>, ShapeFor(op.d_y_TF.dim(0), F, N),
                  stream, Whole<T>(op.gate_up_T2F, "gate_up"), Whole<T>(op.d_y_TF, "d_y"),
                  Whole<T>(op.d_gate_up_T2F, "d_gate_up"), Whole<T>(op.y_TF, "y"), F);
  });
}

}  // namespace shale::cuda
