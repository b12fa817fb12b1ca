#include "engine/optimizer/optimizer.h"

namespace shale {

OptimizerEntry MakeEntry(const AdamWRule&) {
  static constexpr absl::string_view kFields[] = {"beta1", "beta2", "epsilon", "moments"};
  return {.kind = OptimizerKind::kAdamW,
          .name = "ADAMW",
          .description = "AdamW",
          .defaults = {.learning_rate = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1},
          .fields = kFields,
          .corrects_bias = true,
          .rule = [](const Hyperparameters& h) -> UpdateRule {
            return AdamWRule{.beta1 = static_cast<float>(h.beta1),
                             .beta2 = static_cast<float>(h.beta2),
                             .epsilon = static_cast<float>(h.epsilon),
                             .weight_decay = static_cast<float>(h.weight_decay),
                             .state_dtype = h.moments};
          }};
}

}  // namespace shale
