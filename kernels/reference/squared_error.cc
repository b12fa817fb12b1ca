#include "kernels/ops/loss.h"
#include "kernels/reference/element.h"
#include "kernels/reference/reference_kernels.h"

namespace shale::reference {

absl::Status Reference(const SquaredError& op) {
  const int64_t d = op.prediction_TD.dim(1);
  const bool gradient = op.d_prediction_TD.present();
  for (int64_t t = 0; t < op.prediction_TD.dim(0); ++t) {
    const int64_t row = t * d, target = RowOffset(op.targets_TD, t);
    const double weight = op.weights_T.present() ? Get(op.weights_T, t * op.weights_T.stride(0)) : 1;
    const double factor = gradient ? 2 * weight * Get(op.scale_1, 0) / static_cast<double>(d) : 0;
    double squares = 0;
    for (int64_t i = 0; i < d; ++i) {
      const double difference = weight == 0 ? 0 : Get(op.prediction_TD, row + i) - Get(op.targets_TD, target + i);
      squares += difference * difference;
      if (gradient) Put(op.d_prediction_TD, row + i, factor * difference);
    }
    Put(op.loss_T, t, weight * squares / static_cast<double>(d));
  }
  return absl::OkStatus();
}

}  // namespace shale::reference
