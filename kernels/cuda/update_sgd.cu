// SGD. The kernel moves 20 bytes per parameter with momentum and 12 without. With an fp32 master it moves 2 more if the
// weight is bf16, and 4 more if the weight is fp32. See [Note: elementwise rules] in update.h.
#include "kernels/cuda/update.h"

namespace shale::cuda {
namespace {

struct SgdStep {
  float rate;
};

// Returns the gradient with weight decay.
SHALE_DEVICE float Decayed(float g, bool decays, float weight_decay, float p) {
  return decays ? fmaf(weight_decay, p, g) : g;
}

struct PlainSgd {
  static constexpr int kStates = 0;
  using Step = SgdStep;
  float weight_decay;

  SHALE_DEVICE Step StepOf(const Global<float>& update) const { return {update.Load(kUpdateLearningRate)}; }
  SHALE_DEVICE void Apply(const Step& step, float g, bool decays, float*, float& p) const {
    p = fmaf(-step.rate, Decayed(g, decays, weight_decay, p), p);
  }
};

struct MomentumSgd {
  static constexpr int kStates = 1;
  using Step = SgdStep;
  float mu, weight_decay;
  bool nesterov;

  SHALE_DEVICE Step StepOf(const Global<float>& update) const { return {update.Load(kUpdateLearningRate)}; }
  SHALE_DEVICE void Apply(const Step& step, float g, bool decays, float* s, float& p) const {
    const float d = Decayed(g, decays, weight_decay, p);
    s[0] = fmaf(mu, s[0], d);
    p = fmaf(-step.rate, nesterov ? fmaf(mu, s[0], d) : s[0], p);
  }
};

}  // namespace

absl::Status StartUpdate(const SgdRule& rule, const Update& op, StreamHandle stream) {
  if (rule.momentum == 0) {
    return StartElementwise("SGD", op, PlainSgd{.weight_decay = rule.weight_decay}, stream);
  }
  const MomentumSgd momentum = {.mu = rule.momentum, .weight_decay = rule.weight_decay, .nesterov = rule.nesterov};
  return StartElementwise("SGD", op, momentum, stream);
}

}  // namespace shale::cuda
