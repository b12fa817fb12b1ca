#include "kernels/ops/update.h"
#include "kernels/reference/element.h"
#include "kernels/reference/update.h"

namespace shale::reference {
namespace {

// Returns -1, 0, 1, or NaN for a NaN.
double Sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }

}  // namespace

void Apply(const LionRule& rule, const Update& op, const UpdateStep& step) {
  const Tensor& m_P = op.states[0];
  const double beta1 = rule.beta1, beta2 = rule.beta2;
  for (int64_t i = 0; i < op.weight_P.dim(0); ++i) {
    const double g = Get(op.gradient_P, i) * step.gradient_factor, m = Get(m_P, i);
    const double p = DecayedMaster(op, i, step, rule.weight_decay);
    PutMaster(op, i, p - step.rate * Sign(beta1 * m + (1 - beta1) * g));
    PutState(op, 0, i, beta2 * m + (1 - beta2) * g);
  }
}

}  // namespace shale::reference
