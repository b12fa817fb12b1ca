#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/plan/config/job.h"
#include "engine/strings/pattern.h"

namespace shale {

namespace {

// Copies the hyper-parameters that have other defaults with other rules.
template <class From, class To>
void TakeThoseOfRule(const From& from, To& to) {
  to.beta1 = from.beta1;
  to.beta2 = from.beta2;
  to.epsilon = from.epsilon;
  to.momentum = from.momentum;
  to.nesterov = from.nesterov;
  to.weight_decay = from.weight_decay;
  to.newton_schulz_steps = from.newton_schulz_steps;
  to.rate_adjustment = from.rate_adjustment;
}

Hyperparameters HyperparametersOf(const OptimizerConfig& config) {
  Hyperparameters own = {.moments = config.moments == Moments::kBFloat16 ? DType::kBFloat16 : DType::kFloat32,
                         .relative_step = config.relative_step,
                         .scale_parameter = config.scale_parameter};
  TakeThoseOfRule(config, own);
  return own;
}

}  // namespace

void SetDefaultsOfRule(OptimizerConfig& config) {
  const Hyperparameters& defaults = EntryOf(config.kind).defaults;
  config.learning_rate = defaults.learning_rate;
  TakeThoseOfRule(defaults, config);
}

Optimizer MakeOptimizer(const OptimizerConfig& config) { return MakeOptimizer(config.kind, HyperparametersOf(config)); }

std::vector<Optimizer> MakeGroupOptimizers(const OptimizerConfig& config) {
  std::vector<Optimizer> optimizers;
  for (const OptimizerGroupConfig& group : config.groups) {
    const OptimizerKind kind = group.kind.value_or(config.kind);
    Hyperparameters own = HyperparametersOf(config);
    if (kind != config.kind) TakeThoseOfRule(EntryOf(kind).defaults, own);
    own.beta1 = group.beta1.value_or(own.beta1);
    own.beta2 = group.beta2.value_or(own.beta2);
    own.epsilon = group.epsilon.value_or(own.epsilon);
    own.momentum = group.momentum.value_or(own.momentum);
    own.nesterov = group.nesterov.value_or(own.nesterov);
    own.weight_decay = group.weight_decay.value_or(own.weight_decay);
    own.newton_schulz_steps = group.newton_schulz_steps.value_or(own.newton_schulz_steps);
    own.rate_adjustment = group.rate_adjustment.value_or(own.rate_adjustment);
    const auto set = [&](Optimizer& optimizer) {
      optimizer.learning_rate_factor = group.learning_rate_factor;
      optimizer.max_gradient_norm = group.max_gradient_norm;
    };
    Optimizer& made = optimizers.emplace_back(MakeOptimizer(kind, own));
    set(made);
    for (Optimizer& other : made.others) set(other);
  }
  return optimizers;
}

bool HasStates(const OptimizerConfig& config) {
  const auto keeps = [](const Optimizer& optimizer) { return optimizer.has_states_of_elements(); };
  const std::vector<Optimizer> groups = MakeGroupOptimizers(config);
  return keeps(MakeOptimizer(config)) || std::any_of(groups.begin(), groups.end(), keeps);
}

std::vector<std::vector<std::string>> PatternsOfGroups(const OptimizerConfig& config) {
  std::vector<std::vector<std::string>> patterns;
  for (const OptimizerGroupConfig& group : config.groups) patterns.push_back(group.parameters);
  return patterns;
}

std::vector<int> DividedGroups(const OptimizerConfig& config) {
  std::vector<int> divided;
  if (!MakeOptimizer(config).others.empty()) divided.push_back(-1);
  const std::vector<Optimizer> groups = MakeGroupOptimizers(config);
  for (int i = 0; i < std::ssize(groups); ++i) {
    if (!groups[i].others.empty()) divided.push_back(i);
  }
  return divided;
}

OptimizerKind KindOf(const OptimizerConfig& config, absl::string_view parameter) {
  const int group = FirstMatch(PatternsOfGroups(config), parameter);
  return group < 0 ? config.kind : config.groups[group].kind.value_or(config.kind);
}

bool ReadsMoments(const OptimizerConfig& config) {
  const auto reads = [](OptimizerKind kind) { return EntryOf(kind).Reads("moments"); };
  return reads(config.kind) || std::any_of(config.groups.begin(), config.groups.end(),
                                           [&](const auto& group) { return reads(group.kind.value_or(config.kind)); });
}

void SetLeanMoments(OptimizerConfig& config) {
  if (ReadsMoments(config)) config.moments = Moments::kBFloat16;
}

std::vector<std::string> LearningRateRemarks(const OptimizerConfig& config) {
  constexpr double kFar = 2;
  const OptimizerEntry& of_job = EntryOf(config.kind);
  std::vector<std::string> remarks;
  for (size_t i = 0; i < config.groups.size(); ++i) {
    const OptimizerGroupConfig& group = config.groups[i];
    const OptimizerEntry& own = EntryOf(group.kind.value_or(config.kind));
    // CheckRatesOfGroups (rules.cc) refuses what goes wrong with relative steps, whose rates are of another kind.
    const bool comparable = own.kind != of_job.kind && !own.Reads("relative_step") && !of_job.Reads("relative_step");
    if (!comparable || group.learning_rate_factor != 1 || config.learning_rate <= 0) continue;
    const RateAdjustment adjustment = group.kind.has_value() ? own.defaults.rate_adjustment : config.rate_adjustment;
    const double usual = own.usual_rate(group.rate_adjustment.value_or(adjustment)),
                 usual_of_job = of_job.usual_rate(config.rate_adjustment);
    if (std::max(config.learning_rate / usual, usual / config.learning_rate) < kFar) continue;
    remarks.push_back(absl::StrCat("optimizer.groups[", i, "] (", absl::StrJoin(group.parameters, ", "), ") has rule ",
                                   own.name, " and takes the learning rate of the job, ", config.learning_rate,
                                   ", unchanged; usual are ", usual, " for ", own.name, " and ", usual_of_job, " for ",
                                   of_job.name, ", so give the group a learning_rate_factor, such as ",
                                   usual / usual_of_job));
  }
  return remarks;
}

}  // namespace shale
