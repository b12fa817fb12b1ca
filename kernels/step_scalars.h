// The scalars of a step, and where each lies in its tensor. The ops of kernels/ops/scalars.h read and write them on the
// device.
#pragma once

namespace shale {

// Values that the host sets for each step, f32: [0] learning rate, [1] largest gradient norm (0: no clipping).
inline constexpr int kHyperLearningRate = 0;
inline constexpr int kHyperMaxNorm = 1;
inline constexpr int kHyperSize = 2;
// Totals that each step sums over the ranks, f64: [0] sum of the losses, [1] squared norm of the gradient, [2] number
// of ranks whose loss or norm is not finite.
inline constexpr int kTotalLoss = 0;
inline constexpr int kTotalSquaredNorm = 1;
inline constexpr int kTotalNonFinite = 2;
inline constexpr int kTotalSize = 3;
// Values that an Update reads, f32, where n is the update count: [0] learning rate, [1] 1 - beta1^n, [2] 1 - beta2^n,
// [3] factor on the gradient (clipping), [4] 1 to skip the update, else 0.
inline constexpr int kUpdateLearningRate = 0;
inline constexpr int kUpdateCorrection1 = 1;
inline constexpr int kUpdateCorrection2 = 2;
inline constexpr int kUpdateGradientFactor = 3;
inline constexpr int kUpdateSkip = 4;
inline constexpr int kUpdateSize = 5;

// The state of dynamic loss scaling, f64: [0] factor on the gradients of the loss, [1] steps since that factor changed
// without a gradient that was not finite, [2] skipped steps in a row. Counts are whole numbers.
inline constexpr int kLossScaleFactor = 0;
inline constexpr int kLossScaleGoodSteps = 1;
inline constexpr int kLossScaleSkips = 2;
inline constexpr int kLossScaleSize = 3;

}  // namespace shale
