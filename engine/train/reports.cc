#include "engine/train/reports.h"

#include <cmath>

#include "kernels/step_scalars.h"

namespace shale {

bool IsFinite(const StepOutputs& outputs) { return outputs.totals[kTotalNonFinite] == 0; }

StepReport MakeStepReport(const StepOutputs& outputs, const StepFacts& facts) {
  const double tokens = static_cast<double>(outputs.global_tokens);
  StepReport report;
  report.step = facts.step;
  report.tokens = facts.tokens;
  report.step_tokens = outputs.global_tokens;
  report.learning_rate = facts.learning_rate;
  report.loss = outputs.global_tokens > 0 ? outputs.totals[kTotalLoss] / tokens : 0;
  report.gradient_norm = std::sqrt(outputs.totals[kTotalSquaredNorm]);
  report.updated = IsFinite(outputs) && outputs.global_tokens > 0;
  report.seconds = facts.seconds;
  report.tokens_per_second = tokens / report.seconds;
  if (facts.peak_flops > 0) {
    report.mfu =
        report.tokens_per_second * facts.flops_per_token / (facts.peak_flops * static_cast<double>(facts.ranks));
  }
  report.peak_bytes_planned = facts.peak_bytes_planned;
  report.peak_bytes_measured = facts.peak_bytes_measured;
  if (!IsFinite(outputs)) report.loss = report.gradient_norm = std::nan("");
  return report;
}

void EvaluationSum::Add(const StepOutputs& outputs) {
  loss_ += outputs.totals[kTotalLoss];
  tokens_ += outputs.global_tokens;
}

EvaluationReport EvaluationSum::Report(int64_t step) const {
  return {.step = step, .loss = tokens_ > 0 ? loss_ / static_cast<double>(tokens_) : 0, .tokens = tokens_};
}

}  // namespace shale
