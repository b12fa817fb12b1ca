// RMSNorm.
//
// Forward: reads x (and residual) once from memory, writes sum and y once: bound by memory. Rows up to kWarpRowMax
// wide take a warp each and no barrier, wider ones a block. A thread owns the same 16-byte packs in both passes over
// its row, so that y may be x, and the second pass finds the row in L1. Rows that do not begin at 16-byte addresses go
// element by element.
#include "kernels/cuda/portable.h"

#include <type_traits>

#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"

namespace shale::cuda {
namespace {

constexpr int64_t kWarpRowMax = 1024;
constexpr int kRowsPerBlock = 4;    // Of a warp each.
constexpr int kBlockThreads = 256;  // Of one row.

template <int N>
using Width = std::integral_constant<int, N>;

// Calls body(Width<N>, c) for the pieces [c, c + N) of a row of C elements that belong to this thread: packs, then
// what remains one by one.
template <int kPack, int kThreads, class Body>
SHALE_DEVICE void ForEachPiece(int64_t C, const Body& body) {
  const int64_t packed = C / kPack * kPack;
  for (int64_t c = threadIdx.x * kPack; c < packed; c += kThreads * kPack) body(Width<kPack>(), c);
  for (int64_t c = packed + threadIdx.x; c < C; c += kThreads) body(Width<1>(), c);
}

// The sum over the threads of a row, the same bits in each.
template <int kThreads>
SHALE_DEVICE float SumOverRow(float sum) {
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  if constexpr (kThreads > kWarpThreads) {
    SHALE_SHARED_ARRAY(float, sum_of_warp, kThreads / kWarpThreads);
    if (threadIdx.x % kWarpThreads == 0) sum_of_warp.Store(threadIdx.x / kWarpThreads, sum);
    __syncthreads();
    sum = 0;
    for (int w = 0; w < kThreads / kWarpThreads; ++w) sum += sum_of_warp.Load(w);
  }
  return sum;
}

// A row per kThreads threads. `source` is what is normalised in the second pass: sum, or x when no residual is given.
template <class T, int kPack, int kThreads>
SHALE_KERNEL RmsNormForwardKernel(Rows<T> x, Rows<T> residual, Rows<T> sum, Global<T> weight_C, Rows<T> y,
                                  Global<float> rstd_R, int64_t R, int64_t C, float epsilon) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  if (row >= R) return;  // Whole warps, and only where a row is a warp: no barrier follows.

  const int64_t x_row = x.Begin(row), y_row = y.Begin(row);
  const bool add = residual.at.present();
  const int64_t residual_row = add ? residual.Begin(row) : 0, sum_row = add ? sum.Begin(row) : 0;
  float squares = 0;
  ForEachPiece<kPack, kThreads>(C, [&](auto width, int64_t c) {
    constexpr int N = decltype(width)::value;
    Pack<T, N> s = x.at.template Load<N>(x_row + c);
    if (add) {
      const Pack<T, N> r = residual.at.template Load<N>(residual_row + c);
      for (int i = 0; i < N; ++i) s.at[i] = Narrow<T>(Widen(s.at[i]) + Widen(r.at[i]));
      sum.at.template Store<N>(sum_row + c, s);
    }
    for (int i = 0; i < N; ++i) squares = fmaf(Widen(s.at[i]), Widen(s.at[i]), squares);
  });
  const float mean = SumOverRow<kThreads>(squares) / static_cast<float>(C);
  const float rstd = 1.0f / sqrtf(mean + epsilon);
  if (threadIdx.x == 0) rstd_R.Store(row, rstd);

  const Global<T> source = add ? sum.at : x.at;
  const int64_t source_row = add ? sum_row : x_row;
  ForEachPiece<kPack, kThreads>(C, [&](auto width, int64_t c) {
    constexpr int N = decltype(width)::value;
    Pack<T, N> s = source.template Load<N>(source_row + c);
    const Pack<T, N> w = weight_C.template Load<N>(c);
    for (int i = 0; i < N; ++i) s.at[i] = Narrow<T>(Widen(s.at[i]) * rstd * Widen(w.at[i]));
    y.at.template Store<N>(y_row + c, s);
  });
}

template <class T, int kPack>
absl::Status Start(const RmsNormForward& op, StreamHandle stream) {
  const int64_t C = op.x.dim(-1), R = op.rstd_R.elements();
  const Rows<T> x(op.x, "x"), residual(op.residual, "residual"), sum(op.sum, "sum"), y(op.y, "y");
  const Global<T> weight = Whole<T>(op.weight_C, "weight");
  const Global<float> rstd = Whole<float>(op.rstd_R, "rstd");
  if (C <= kWarpRowMax) {
    const LaunchShape shape = {.grid = dim3((R + kRowsPerBlock - 1) / kRowsPerBlock),
                               .block = dim3(kWarpThreads, kRowsPerBlock)};
    return Launch("RmsNormForward", RmsNormForwardKernel<T, kPack, kWarpThreads>, shape, stream, x, residual, sum,
                  weight, y, rstd, R, C, op.epsilon);
  }
  const LaunchShape shape = {.grid = dim3(R), .block = dim3(kBlockThreads)};
  return Launch("RmsNormForward", RmsNormForwardKernel<T, kPack, kBlockThreads>, shape, stream, x, residual, sum,
                weight, y, rstd, R, C, op.epsilon);
}

}  // namespace

absl::Status Run(const RmsNormForward& op, Scratch scratch, StreamHandle stream) {
  const bool packs = RowsAligned(op.x) && RowsAligned(op.residual) && RowsAligned(op.weight_C) &&
                     RowsAligned(op.sum) && RowsAligned(op.y);
  return WithElement(op.x.dtype, [&](auto element) {
    using T = decltype(element);
    return packs ? Start<T, kPackOf<T>>(op, stream) : Start<T, 1>(op, stream);
  });
}

}  // namespace shale::cuda
