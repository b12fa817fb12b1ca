#include <cmath>

#include "kernels/ops/update.h"
#include "kernels/reference/element.h"
#include "kernels/reference/update.h"

namespace shale::reference {

double AdamWStep(const UpdateStep& step, float epsilon, double m, double v) {
  return step.rate / step.correction1 * m / (std::sqrt(v) / std::sqrt(step.correction2) + epsilon);
}

void Apply(const AdamWRule& rule, const Update& op, const UpdateStep& step) {
  const Tensor &m_P = op.states[0], &v_P = op.states[1];
  const double beta1 = rule.beta1, beta2 = rule.beta2;
  for (int64_t i = 0; i < op.weight_P.dim(0); ++i) {
    const double g = Get(op.gradient_P, i) * step.gradient_factor;
    const double m = PutState(op, 0, i, Get(m_P, i) + (1 - beta1) * (g - Get(m_P, i)));
    const double v = PutState(op, 1, i, beta2 * Get(v_P, i) + (1 - beta2) * g * g);
    PutMaster(op, i, DecayedMaster(op, i, step, rule.weight_decay) - AdamWStep(step, rule.epsilon, m, v));
  }
}

}  // namespace shale::reference
