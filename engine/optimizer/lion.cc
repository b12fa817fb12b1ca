#include "engine/optimizer/optimizer.h"

namespace shale {

OptimizerEntry MakeEntry(const LionRule&) {
  static constexpr absl::string_view kFields[] = {"beta1", "beta2", "moments"};
  return {.kind = OptimizerKind::kLion,
          .name = "LION",
          .description = "Lion",
          .defaults = {.learning_rate = 1e-4, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1},
          .fields = kFields,
          .rule = [](const Hyperparameters& h) -> UpdateRule {
            return LionRule{.beta1 = static_cast<float>(h.beta1),
                            .beta2 = static_cast<float>(h.beta2),
                            .weight_decay = static_cast<float>(h.weight_decay),
                            .state_dtype = h.moments};
          }};
}

}  // namespace shale
