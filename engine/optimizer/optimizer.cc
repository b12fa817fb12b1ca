#include "engine/optimizer/optimizer.h"

#include <algorithm>
#include <array>
#include <variant>

#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale {

bool OptimizerEntry::Reads(absl::string_view field) const {
  return std::find(fields.begin(), fields.end(), field) != fields.end();
}

absl::Span<const OptimizerEntry> Optimizers() {
  static const auto entries = [] {
    const auto rules = DefaultRules();
    std::array<OptimizerEntry, std::tuple_size_v<decltype(rules)>> all;
    for (size_t i = 0; i < rules.size(); ++i) {
      all[i] = std::visit([](const auto& rule) { return MakeEntry(rule); }, rules[i]);
    }
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
          .beta2 = entry.corrects_bias ? hyperparameters.beta2 : 0};
}

int64_t StateBytes(absl::Span<const UpdateState> states, int64_t elements) {
  int64_t bytes = 0;
  for (const UpdateState& state : states) bytes += CeilDivide(elements, state.block) * SizeOf(state.dtype);
  return bytes;
}

}  // namespace shale
