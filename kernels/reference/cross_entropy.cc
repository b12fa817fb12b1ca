#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/ops/loss.h"
#include "kernels/reference/element.h"
#include "kernels/reference/index_checks.h"
#include "kernels/reference/reference_kernels.h"

namespace shale::reference {

absl::Status Reference(const CrossEntropy& op) {
  const int64_t v = op.logits_TV.dim(1);
  SHALE_RETURN_IF_ERROR(CheckTargets(op.kName, op.targets_T, v));
  for (int64_t t = 0; t < op.logits_TV.dim(0); ++t) {
    const int64_t row = t * v, target = op.targets_T.as<const int32_t>()[t * op.targets_T.stride(0)];
    const double weight = op.weights_T.present() ? Get(op.weights_T, t * op.weights_T.stride(0)) : 1;
    if (target < 0 || weight == 0) {
      Put(op.loss_T, t, 0);
      for (int64_t i = 0; op.gradient && i < v; ++i) Put(op.logits_TV, row + i, 0);
      continue;
    }
    const auto x = [&](int64_t i) {
      const double logit = Get(op.logits_TV, row + i);
      return op.cap > 0 ? op.cap * std::tanh(logit / op.cap) : logit;
    };
    double largest = -std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < v; ++i) largest = std::max(largest, x(i));
    double sum = 0;
    for (int64_t i = 0; i < v; ++i) sum += std::exp(x(i) - largest);
    Put(op.loss_T, t, weight * (std::log(sum) + largest - x(target)));
    const double scale = op.gradient ? weight * Get(op.scale_1, 0) : 0;
    for (int64_t i = 0; op.gradient && i < v; ++i) {
      const double p = std::exp(x(i) - largest) / sum, slope = op.cap > 0 ? 1 - std::pow(x(i) / op.cap, 2) : 1;
      Put(op.logits_TV, row + i, (i == target ? p - 1 : p) * slope * scale);
    }
  }
  return absl::OkStatus();
}

}  // namespace shale::reference
