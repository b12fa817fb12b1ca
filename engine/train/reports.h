// The reports of a run's steps and evaluations, computed from the outputs of its programs.
#pragma once

#include <cstdint>

#include "engine/api/events.h"
#include "engine/graph/target_weights.h"
#include "engine/runtime/host_items.h"

namespace shale {

// Returns whether the loss and the gradient of a step were finite on all ranks.
bool IsFinite(const StepOutputs& outputs);

// What is known about a step besides its outputs.
struct StepFacts {
  int64_t step = 0;    // As in StepReport.
  int64_t tokens = 0;  // As in StepReport.
  int64_t processed_tokens = 0;
  double learning_rate = 0;
  double seconds = 0;
  int64_t ranks = 1;
  double flops_per_token = 0;  // ModelFlopsPerToken.
  double peak_flops = 0;       // Of one rank; 0: not known.
  int64_t peak_bytes_planned = 0;
  int64_t peak_bytes_measured = 0;
  TargetWeights target_weights = TargetWeights::kNone;
};
StepReport MakeStepReport(const StepOutputs& outputs, const StepFacts& facts);

// Adds up the runs of an evaluation.
class EvaluationSum {
 public:
  explicit EvaluationSum(TargetWeights target_weights = TargetWeights::kNone) : target_weights_(target_weights) {}
  void Add(const StepOutputs& outputs);
  // Returns the report on all runs that were added. `step` is the number of steps done.
  EvaluationReport Report(int64_t step) const;

 private:
  TargetWeights target_weights_;
  double loss_ = 0;  // Summed over tokens.
  double weight_ = 0;
  int64_t tokens_ = 0;
};

}  // namespace shale
