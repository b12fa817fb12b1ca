// Optimizers: their names in a job, the hyper-parameters that they read, and the update rules that they apply.
//
// The rule (kernels/update_rules.h) declares the states and computes the update. Everything that concerns optimizer
// state, from the memory plan to checkpoints, loops over the states that the rule declares. So a new optimizer needs a
// rule with its kernels, a value in OptimizerKind, and one file here that defines its MakeEntry.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/update_rules.h"

namespace shale {

// The optimizers that a job may name. The order is that of OptimizerSpec.Rule in proto/job.proto, and first of
// UpdateRule.
enum class OptimizerKind { kAdamW, kSgd, kLion, kAdamW8Bit, kAdafactor };

// The hyper-parameters of all optimizers. Each optimizer reads weight_decay and the fields that its entry lists.
struct Hyperparameters {
  double learning_rate = 0;  // The default of the peak learning rate. Only jobs read it.
  double beta1 = 0, beta2 = 0, epsilon = 0;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  DType moments = DType::kFloat32;  // Of the states: f32 or bf16.
  bool relative_step = true, scale_parameter = true;
};

// What Adafactor does before its update rule, an SGD, subtracts the direction (kernels/ops/adafactor.h). Its second
// moments are no states of the rule, because they have an element for each row and column of a matrix.
struct FactoredSettings {
  float beta1 = 0, weight_decay = 0;
  bool relative_step = true, scale_parameter = true;
  bool operator==(const FactoredSettings&) const = default;
};

// What the engine knows about one kind of optimizer.
struct OptimizerEntry {
  OptimizerKind kind = OptimizerKind::kAdamW;
  absl::string_view name;         // In job specs and messages: "ADAMW".
  absl::string_view description;  // For reports: "AdamW".
  Hyperparameters defaults;
  // Fields of OptimizerSpec that this optimizer reads and that not all optimizers read: "beta1". A job that sets
  // another one is refused.
  absl::Span<const absl::string_view> fields;
  // Whether the update corrects the bias of moments with decay rates beta1 and beta2 (PrepareUpdate).
  bool corrects_bias = false;
  // Returns the update rule with these hyper-parameters.
  UpdateRule (*rule)(const Hyperparameters& hyperparameters) = nullptr;
  bool factors = false;  // Whether it is Adafactor (Optimizer::factored).

  // Returns whether `field` is one of `fields`.
  bool Reads(absl::string_view field) const;
};

// Returns all optimizers, in the order of OptimizerKind. The span is valid forever.
absl::Span<const OptimizerEntry> Optimizers();
const OptimizerEntry& EntryOf(OptimizerKind kind);

// An optimizer with its hyper-parameters: what the step compiler needs to know.
struct Optimizer {
  OptimizerKind kind = OptimizerKind::kAdamW;
  UpdateRule rule = AdamWRule{};
  double beta1 = 0.9, beta2 = 0.95;  // Decay rates of the bias correction. 0: no correction.
  double learning_rate_factor = 1;   // Its learning rate is that of the step times this.
  // The largest norm of the gradients of its parameters alone; 0: they are not clipped. Empty: they are clipped with
  // those of all other optimizers without one, by the largest norm of the step.
  std::optional<double> max_gradient_norm;
  std::optional<FactoredSettings> factored;

  absl::Span<const UpdateState> states() const { return StatesOf(rule); }
};
Optimizer MakeOptimizer(OptimizerKind kind, const Hyperparameters& hyperparameters);

// Returns how many bytes of state an optimizer keeps for `elements` elements of a flat group.
int64_t StateBytes(absl::Span<const UpdateState> states, int64_t elements);

// Return the entry of the optimizer that applies a rule. Each is defined in a file of its own. Only the type of the
// argument matters.
#define SHALE_DECLARE(Rule) OptimizerEntry MakeEntry(const Rule&);
SHALE_EACH_UPDATE_RULE(SHALE_DECLARE)
#undef SHALE_DECLARE

}  // namespace shale
