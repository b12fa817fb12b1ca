#include "engine/compile/optimizer/optimizer.h"

#include <algorithm>
#include <array>
#include <variant>

#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale {
namespace {

OptimizerEntry AdafactorEntry() {
  static constexpr absl::string_view kFields[] = {"beta1", "moments", "relative_step", "scale_parameter"};
  return {.kind = OptimizerKind::kAdafactor,
          .name = "ADAFACTOR",
          .description = "Adafactor",
          .defaults = {.learning_rate = 1},
          .fields = kFields,
          .rule = [](const Hyperparameters& h) -> UpdateRule {
            return SgdRule{.momentum = static_cast<float>(h.beta1), .state_dtype = h.moments};
          },
          .factors = true};
}

}  // namespace

bool OptimizerEntry::Reads(absl::string_view field) const {
  return std::find(fields.begin(), fields.end(), field) != fields.end();
}

absl::Span<const OptimizerEntry> Optimizers() {
  static const auto entries = [] {
    const auto rules = DefaultRules();
    std::array<OptimizerEntry, std::tuple_size_v<decltype(rules)> + 1> all;
    for (size_t i = 0; i < rules.size(); ++i) {
      all[i] = std::visit([](const auto& rule) { return MakeEntry(rule); }, rules[i]);
    }
    all.back() = AdafactorEntry();
    return all;
  }();
  return entries;
}

const OptimizerEntry& EntryOf(OptimizerKind kind) {
  const OptimizerEntry& entry = Optimizers()[static_cast<int>(kind)];
  SHALE_CHECK(entry.kind == kind) << "OptimizerKind does not follow the order of UpdateRule";
  return entry;
}

Optimizer MakeOptimizer(OptimizerKind kind, const Hyperparameters& hyperparameters) {
  const OptimizerEntry& entry = EntryOf(kind);
  return {.kind = kind,
          .rule = entry.rule(hyperparameters),
          .beta1 = entry.corrects_bias ? hyperparameters.beta1 : 0,
          .beta2 = entry.corrects_bias ? hyperparameters.beta2 : 0,
          .factored = entry.factors ? std::optional(FactoredSettings{
                                          .beta1 = static_cast<float>(hyperparameters.beta1),
                                          .weight_decay = static_cast<float>(hyperparameters.weight_decay),
                                          .relative_step = hyperparameters.relative_step,
                                          .scale_parameter = hyperparameters.scale_parameter})
                                    : std::nullopt};
}

int64_t StateBytes(absl::Span<const UpdateState> states, int64_t elements) {
  int64_t bytes = 0;
  for (const UpdateState& state : states) bytes += CeilDivide(elements, state.block) * SizeOf(state.dtype);
  return bytes;
}

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

OptimizerEntry MakeEntry(const AdamW8BitRule&) {
  static constexpr absl::string_view kFields[] = {"beta1", "beta2", "epsilon"};
  return {.kind = OptimizerKind::kAdamW8Bit,
          .name = "ADAMW_8BIT",
          .description = "8-bit AdamW",
          .defaults = {.learning_rate = 3e-4, .beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1},
          .fields = kFields,
          .corrects_bias = true,
          .rule = [](const Hyperparameters& h) -> UpdateRule {
            return AdamW8BitRule{.beta1 = static_cast<float>(h.beta1),
                                 .beta2 = static_cast<float>(h.beta2),
                                 .epsilon = static_cast<float>(h.epsilon),
                                 .weight_decay = static_cast<float>(h.weight_decay)};
          }};
}

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
