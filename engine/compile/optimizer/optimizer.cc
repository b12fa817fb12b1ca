#include "engine/compile/optimizer/optimizer.h"

#include <algorithm>

#include "kernels/integers.h"

namespace shale {
namespace {

template <class Rule>
UpdateRule RuleOf(const Hyperparameters& h) {
  return Rule::Of(h);
}

template <class Composed>
UpdateRule LastRuleOf(const Hyperparameters& h) {
  return Composed::Of(h).last_rule();
}

template <class Declaration>
double UsualRate(RateAdjustment) {
  return Declaration::kDefaults.learning_rate;
}

template <>
double UsualRate<MuonRule>(RateAdjustment adjustment) {
  constexpr double kUsualForOrthogonal = 0.02;  // Jordan et al., 2024.
  return adjustment == RateAdjustment::kMatchRmsAdamW ? AdamWRule::kDefaults.learning_rate : kUsualForOrthogonal;
}

template <class Declaration>
OptimizerEntry EntryFor(OptimizerKind kind, UpdateRule (*rule)(const Hyperparameters&), bool composed) {
  return {.kind = kind,
          .name = Declaration::kJobName,
          .description = Declaration::kDescription,
          .defaults = Declaration::kDefaults,
          .fields = Declaration::kFields,
          .corrects_bias = Declaration::kCorrectsBias,
          .rule = rule,
          .usual_rate = UsualRate<Declaration>,
          .composed = composed};
}

}  // namespace

bool OptimizerEntry::Reads(absl::string_view field) const {
  return std::find(fields.begin(), fields.end(), field) != fields.end();
}

absl::Span<const OptimizerEntry> Optimizers() {
#define SHALE_RULE(Rule, kind) EntryFor<Rule>(OptimizerKind::kind, RuleOf<Rule>, /*composed=*/false),
#define SHALE_COMPOSED(Rule, kind) EntryFor<Rule>(OptimizerKind::kind, LastRuleOf<Rule>, /*composed=*/true),
  static const OptimizerEntry kEntries[] = {SHALE_EACH_OPTIMIZER(SHALE_RULE, SHALE_COMPOSED)};
#undef SHALE_COMPOSED
#undef SHALE_RULE
  return kEntries;
}

const OptimizerEntry& EntryOf(OptimizerKind kind) { return Optimizers()[static_cast<int>(kind)]; }

std::vector<UpdateState> Optimizer::states() const {
  const absl::Span<const UpdateState> of_rule = StatesOf(rule);
  std::vector<UpdateState> states(of_rule.begin(), of_rule.end());
  if (adafactor) states.push_back(AdafactorRule::kMoments);
  if (muon) states.push_back(muon->momentum_state());
  return states;
}

bool Optimizer::has_states_of_elements() const {
  const std::vector<UpdateState> all = states();
  return std::any_of(all.begin(), all.end(), [](const UpdateState& s) { return s.extent == StateExtent::kElements; });
}

bool Optimizer::has_bfloat16_states() const {
  const std::vector<UpdateState> all = states();
  return std::any_of(all.begin(), all.end(), [](const UpdateState& s) { return s.dtype == DType::kBFloat16; });
}

Optimizer MakeOptimizer(OptimizerKind kind, const Hyperparameters& hyperparameters) {
  const OptimizerEntry& entry = EntryOf(kind);
  Optimizer optimizer = {.kind = kind,
                         .rule = entry.rule(hyperparameters),
                         .beta1 = entry.corrects_bias ? hyperparameters.beta1 : 0,
                         .beta2 = entry.corrects_bias ? hyperparameters.beta2 : 0};
  if (kind == OptimizerKind::kAdafactor) optimizer.adafactor = AdafactorRule::Of(hyperparameters);
  if (kind == OptimizerKind::kMuon) {
    optimizer.muon = MuonRule::Of(hyperparameters);
    Hyperparameters others = AdamWRule::kDefaults;
    others.weight_decay = hyperparameters.weight_decay;
    others.moments = hyperparameters.moments;
    optimizer.others.push_back(MakeOptimizer(OptimizerKind::kAdamW, others));
  }
  return optimizer;
}

int64_t StateBytes(const Optimizer& optimizer, int64_t elements) {
  int64_t bytes = 0;
  for (const UpdateState& state : optimizer.states()) {
    if (state.extent == StateExtent::kElements) bytes += CeilDivide(elements, state.block) * SizeOf(state.dtype);
  }
  return bytes;
}

}  // namespace shale
