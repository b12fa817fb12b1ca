#include "kernels/ops/update.h"
#include "kernels/reference/element.h"
#include "kernels/reference/update.h"

namespace shale::reference {

void Apply(const SgdRule& rule, const Update& op, const UpdateStep& step) {
  const double mu = rule.momentum;
  for (int64_t i = 0; i < op.weight_P.dim(0); ++i) {
    const double p = Master(op, i);
    const double d = Get(op.gradient_P, i) * step.gradient_factor + (Decays(op, i) ? rule.weight_decay * p : 0);
    double direction = d;
    if (mu != 0) {
      const double momentum = PutState(op, 0, i, mu * Get(op.states[0], i) + d);
      direction = rule.nesterov ? d + mu * momentum : momentum;
    }
    PutMaster(op, i, p - step.rate * direction);
  }
}

}  // namespace shale::reference
