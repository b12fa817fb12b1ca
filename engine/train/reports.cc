#include "engine/train/reports.h"

#include <cmath>

#include "kernels/step_scalars.h"

namespace shale {

namespace {

// Returns the loss of a sum, or 0 if it is divided by nothing.
double LossOf(double sum, TargetWeights weights, int64_t tokens, double weight) {
  const double divisor = weights == TargetWeights::kOverWeights ? weight : static_cast<double>(tokens);
  return divisor > 0 ? sum / divisor : 0;
}

}  // namespace

bool IsFinite(const StepOutputs& outputs) { return outputs.totals[kTotalNonFinite] == 0; }

StepReport MakeStepReport(const StepOutputs& outputs, const StepFacts& facts) {
  StepReport report;
  report.step = facts.step;
  report.tokens = facts.tokens;
  report.step_tokens = outputs.global_tokens;
  report.processed_tokens = facts.processed_tokens;
  report.learning_rate = facts.learning_rate;
  report.step_weight = outputs.global_weight;
  report.loss = LossOf(outputs.totals[kTotalLoss], facts.target_weights, outputs.global_tokens, outputs.global_weight);
  report.gradient_norm = std::sqrt(outputs.totals[kTotalSquaredNorm]);
  const bool weighted = facts.target_weights == TargetWeights::kNone || outputs.global_weight > 0;
  report.updated = IsFinite(outputs) && outputs.global_tokens > 0 && weighted;
  report.seconds = facts.seconds;
  report.tokens_per_second = static_cast<double>(facts.processed_tokens) / report.seconds;
  if (facts.peak_flops > 0) {
    report.mfu =
        report.tokens_per_second * facts.flops_per_token / (facts.peak_flops * static_cast<double>(facts.ranks));
    if (report.mfu > 1) report.mfu = 0;  // The peak is not one.
  }
  report.peak_bytes_planned = facts.peak_bytes_planned;
  report.peak_bytes_measured = facts.peak_bytes_measured;
  if (!IsFinite(outputs)) report.loss = report.gradient_norm = std::nan("");
  return report;
}

void EvaluationSum::Add(const StepOutputs& outputs) {
  loss_ += outputs.totals[kTotalLoss];
  tokens_ += outputs.global_tokens;
  weight_ += outputs.global_weight;
}

EvaluationReport EvaluationSum::Report(int64_t step) const {
  return {.step = step, .loss = LossOf(loss_, target_weights_, tokens_, weight_), .tokens = tokens_};
}

}  // namespace shale
