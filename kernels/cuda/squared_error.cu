// The squared error and its gradient.
//
// A warp owns a row and reads it once, element by element: neighboring lanes read neighboring elements, so the kernel
// is bound by memory. Each lane sums in fp32, and the sums of the lanes are added in fp64. A thread reads the element
// that it owns before it writes there, so that the gradient may take the place of the prediction.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/integers.h"
#include "kernels/ops/loss.h"

namespace shale::cuda {
namespace {

constexpr int kWarps = 4;

template <class T>
SHALE_KERNEL SHALE_BOUNDS(kWarps* kWarpThreads)
    SquaredErrorKernel(Global<T> prediction_TD, Rows<float> targets_TD, Global<float> weights_T, int64_t weight_stride,
                       Global<float> scale_1, Global<float> loss_T, Global<T> d_prediction_TD, int64_t rows,
                       int64_t D) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarpThreads;
  const int lane = threadIdx.x % kWarpThreads;
  // All lanes of a warp own the same row, so a warp leaves as a whole.
  if (t >= rows) return;
  const double weight = weights_T.present() ? weights_T.Load(t * weight_stride) : 1.0f;
  const bool gradient = d_prediction_TD.present();
  const double mean = 1 / static_cast<double>(D);
  const float factor = gradient ? static_cast<float>(2 * weight * scale_1.Load(0) * mean) : 0.0f;
  const int64_t row = t * D, target = targets_TD.Begin(t);
  float squares = 0;
  for (int64_t i = lane; i < D; i += kWarpThreads) {
    const float difference = weight == 0 ? 0.0f : Widen(prediction_TD.Load(row + i)) - targets_TD.at.Load(target + i);
    squares = fmaf(difference, difference, squares);
    if (gradient) d_prediction_TD.Store(row + i, Narrow<T>(factor * difference));
  }
  double total = squares;
  SHALE_UNROLL
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) total += __shfl_xor_sync(kAllLanes, total, lanes);
  if (lane == 0) loss_T.Store(t, static_cast<float>(weight * mean * total));
}

}  // namespace

absl::Status Run(const SquaredError& op, Scratch scratch, StreamHandle stream) {
  const int64_t rows = op.prediction_TD.dim(0);
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(CeilDivide(rows, int64_t{kWarps}))),
                             .block = dim3(kWarps * kWarpThreads)};
  return WithElement(op.prediction_TD.dtype, [&](auto element) {
    using T = decltype(element);
    return Launch("SquaredError", SquaredErrorKernel<T>, shape, stream, Whole<T>(op.prediction_TD, "prediction"),
                  Rows<float>(op.targets_TD, "targets"), Whole<float>(op.weights_T, "weights"),
                  op.weights_T.present() ? op.weights_T.stride(0) : 0, Whole<float>(op.scale_1, "scale"),
                  Whole<float>(op.loss_T, "loss"), Whole<T>(op.d_prediction_TD, "d_prediction"), rows,
                  op.prediction_TD.dim(1));
  });
}

}  // namespace shale::cuda
