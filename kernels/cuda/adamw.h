// The arithmetic of AdamW, for the rules that store its m and v in different ways.
#pragma once

#include "kernels/cuda/portable.h"
#include "kernels/step_scalars.h"

namespace shale::cuda {

// The hyper-parameters, from AdamWRule or AdamW8BitRule.
struct AdamWRates {
  float rest1, beta2, rest2, epsilon, weight_decay;  // rest1 is 1 - beta1, rest2 is 1 - beta2.
  template <class Rule>
  explicit AdamWRates(const Rule& rule)
      : rest1(1 - rule.beta1),
        beta2(rule.beta2),
        rest2(1 - rule.beta2),
        epsilon(rule.epsilon),
        weight_decay(rule.weight_decay) {}
};

struct AdamWStep {
  float step, root_correction, shrink;
  SHALE_DEVICE AdamWStep(const AdamWRates& rates, const Global<float>& update)
      : step(update.Load(kUpdateLearningRate) / update.Load(kUpdateCorrection1)),
        root_correction(sqrtf(update.Load(kUpdateCorrection2))),
        shrink(update.Load(kUpdateLearningRate) * rates.weight_decay) {}
};

// Updates one element, whose clipped gradient is g.
SHALE_DEVICE void ApplyAdamW(const AdamWRates& rates, const AdamWStep& step, float g, bool decays, float& m, float& v,
                             float& p) {
  if (decays) p = fmaf(-step.shrink, p, p);
  m = fmaf(rates.rest1, g - m, m);
  v = fmaf(rates.rest2 * g, g, rates.beta2 * v);
  p -= step.step * m / (sqrtf(v) / step.root_correction + rates.epsilon);
}

}  // namespace shale::cuda
