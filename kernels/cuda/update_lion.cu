// Lion. The kernel moves 20 bytes per parameter with split masters or an fp32 weight alone, 22 with an fp32 master and
// a bf16 weight, and 24 with an fp32 master and an fp32 weight. See [Note: elementwise rules] in update.h.
#include "kernels/cuda/update.h"

namespace shale::cuda {
namespace {

// Returns -1, 0, 1, or NaN for a NaN.
SHALE_DEVICE float SignOf(float x) { return fabsf(x) > 0 ? copysignf(1, x) : x; }

struct LionElements {
  static constexpr int kStates = 1;
  struct Step {
    float rate, shrink;
  };
  float beta1, rest1, beta2, rest2, weight_decay;  // rest1 is 1 - beta1, rest2 is 1 - beta2.

  SHALE_DEVICE Step StepOf(const Global<float>& update) const {
    const float rate = update.Load(kUpdateLearningRate);
    return {rate, rate * weight_decay};
  }
  SHALE_DEVICE void Apply(const Step& step, float g, bool decays, float* s, float& p) const {
    if (decays) p = fmaf(-step.shrink, p, p);
    p = fmaf(-step.rate, SignOf(fmaf(rest1, g, beta1 * s[0])), p);
    s[0] = fmaf(rest2, g, beta2 * s[0]);
  }
};

}  // namespace

absl::Status StartUpdate(const LionRule& rule, const Update& op, StreamHandle stream) {
  const LionElements lion = {.beta1 = rule.beta1,
                             .rest1 = 1 - rule.beta1,
                             .beta2 = rule.beta2,
                             .rest2 = 1 - rule.beta2,
                             .weight_decay = rule.weight_decay};
  return StartElementwise("Lion", op, lion, stream);
}

}  // namespace shale::cuda
