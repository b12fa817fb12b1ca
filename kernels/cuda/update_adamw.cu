// AdamW. The kernel moves 28 bytes per parameter with split masters or an fp32 weight alone, 30 with an fp32 master and
// a bf16 weight, and 32 with an fp32 master and an fp32 weight. See [Note: elementwise rules] in update.h.
#include "kernels/cuda/adamw.h"
#include "kernels/cuda/update.h"

namespace shale::cuda {
namespace {

struct AdamWElements {
  static constexpr int kStates = 2;
  using Step = AdamWStep;
  AdamWRates rates;

  SHALE_DEVICE Step StepOf(const Global<float>& update) const { return Step(rates, update); }
  SHALE_DEVICE void Apply(const Step& step, float g, bool decays, float* s, float& p) const {
    ApplyAdamW(rates, step, g, decays, s[0], s[1], p);
  }
};

}  // namespace

absl::Status StartUpdate(const AdamWRule& rule, const Update& op, StreamHandle stream) {
  return StartElementwise("AdamW", op, AdamWElements{AdamWRates(rule)}, stream);
}

}  // namespace shale::cuda
