#include "engine/train/metrics.h"

namespace shale {

JsonObject StepMetrics(const StepReport& report) {
  JsonObject row;
  row.Add("step", report.step)
      .Add("tokens", report.tokens)
      .Add("loss", report.loss)
      .Add("grad_norm", report.gradient_norm)
      .Add("learning_rate", report.learning_rate)
      .Add("updated", report.updated)
      .Add("seconds", report.seconds)
      .Add("tokens_per_second", report.tokens_per_second)
      .Add("mfu", report.mfu)
      .Add("peak_bytes_planned", report.peak_bytes_planned)
      .Add("peak_bytes_measured", report.peak_bytes_measured);
  if (report.step_weight > 0) row.Add("weight", report.step_weight);
  return row;
}

JsonObject EvaluationMetrics(int64_t step, const EvaluationReport& report) {
  JsonObject row;
  row.Add("step", step).Add("evaluation_loss", report.loss).Add("evaluation_tokens", report.tokens);
  return row;
}

}  // namespace shale
