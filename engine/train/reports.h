// The reports of a run's steps and evaluations, computed from the outputs of its programs.
#pragma once

#include <cstdint>

#include "engine/graph/target_weights.h"
#include "engine/runtime/host_items.h"

namespace shale {

struct StepReport {
  int64_t step = 0;    // Counted from 1.
  int64_t tokens = 0;  // Valid target tokens so far, over all ranks and steps.
  int64_t step_tokens = 0;
  double loss = 0;           // Divided by what TargetWeights says: the valid tokens or the weights of the global batch.
  double step_weight = 0;    // The sum of |weight| over the global batch; 0 without weights.
  double gradient_norm = 0;  // Before clipping.
  double learning_rate = 0;
  // False if no token was valid, if all weights were 0, or if loss or gradient were not finite and the step was
  // skipped.
  bool updated = true;
  double seconds = 0;
  double tokens_per_second = 0;
  double mfu = 0;                   // Fraction of peak_flops x ranks; 0 if no peak is known.
  int64_t peak_bytes_planned = 0;   // Per rank.
  int64_t peak_bytes_measured = 0;  // The largest of any rank so far.
};

struct EvaluationReport {
  int64_t step = 0;  // Steps done.
  double loss = 0;   // Divided as in StepReport.
  int64_t tokens = 0;
};

// Returns whether the loss and the gradient of a step were finite on all ranks.
bool IsFinite(const StepOutputs& outputs);

// What is known about a step besides its outputs.
struct StepFacts {
  int64_t step = 0;    // As in StepReport.
  int64_t tokens = 0;  // As in StepReport.
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
