#include "engine/optimizer/optimizer.h"

namespace shale {

OptimizerEntry MakeEntry(const SgdRule&) {
  static constexpr absl::string_view kFields[] = {"momentum", "nesterov", "moments"};
  return {.kind = OptimizerKind::kSgd,
          .name = "SGD",
          .description = "SGD",
          .defaults = {.learning_rate = 0.1, .momentum = 0.9, .weight_decay = 0},
          .fields = kFields,
          .rule = [](const Hyperparameters& h) -> UpdateRule {
            return SgdRule{.momentum = static_cast<float>(h.momentum),
                           .weight_decay = static_cast<float>(h.weight_decay),
                           .nesterov = h.nesterov,
                           .state_dtype = h.moments};
          }};
}

}  // namespace shale
