// Optimizers: their names in a job, the hyper-parameters that they read, and the update rules that they apply.
//
// The rule (kernels/update_rules.h) declares all of this and its states, and computes the update. Everything that
// concerns optimizer state, from the memory plan to checkpoints, loops over the declared states. So a new optimizer
// that applies a rule needs nothing here.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/update_rules.h"

namespace shale {

// The optimizers that a job may name, in the order of SHALE_EACH_OPTIMIZER.
#define SHALE_KIND(Declaration, kind) kind,
enum class OptimizerKind { SHALE_EACH_OPTIMIZER(SHALE_KIND, SHALE_KIND) };
#undef SHALE_KIND

// What the engine knows about one kind of optimizer: what its rule declares (kernels/update_rules.h).
struct OptimizerEntry {
  OptimizerKind kind = OptimizerKind::kAdamW;
  absl::string_view name;         // kJobName.
  absl::string_view description;  // kDescription.
  Hyperparameters defaults;
  absl::Span<const absl::string_view> fields;
  bool corrects_bias = false;
  // Returns the update rule with these hyper-parameters; of a composed optimizer the last one.
  UpdateRule (*rule)(const Hyperparameters& hyperparameters) = nullptr;
  // Returns the learning rate that is usual for it, if it adjusts the rate of a matrix like this.
  double (*usual_rate)(RateAdjustment adjustment) = nullptr;
  bool composed = false;  // Whether it does more than apply a rule, after backward and on the device.

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
  std::optional<AdafactorRule> adafactor;  // What it does before `rule`, with kAdafactor.
  std::optional<MuonRule> muon;            // The same, with kMuon.
  // If it updates only matrices of blocks (ParameterGroup::block_matrices): the one optimizer that updates all others.
  std::vector<Optimizer> others;

  bool composed() const { return EntryOf(kind).composed; }
  // Returns what updates its parameters that are matrices of blocks, or those that are not.
  const Optimizer& Of(bool block_matrices) const { return block_matrices || others.empty() ? *this : others[0]; }
  // Returns the states that it keeps, those of its rule first.
  std::vector<UpdateState> states() const;
  // Returns whether some of them have an element for each weight, so that it pays to move them to the host.
  bool has_states_of_elements() const;
  // Returns whether some are in bf16, so that updates round stochastically.
  bool has_bfloat16_states() const;
};
Optimizer MakeOptimizer(OptimizerKind kind, const Hyperparameters& hyperparameters);

// Returns how many bytes an optimizer keeps for `elements` elements of a flat group, in its states that have an element
// for each of them.
int64_t StateBytes(const Optimizer& optimizer, int64_t elements);

}  // namespace shale
