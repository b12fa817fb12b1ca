// Rows of metrics.jsonl.
#pragma once

#include "engine/io/json_lines.h"
#include "engine/train/trainer.h"

namespace shale {

// {"step", "tokens", "loss", "grad_norm", "learning_rate", "updated", "seconds", "tokens_per_second", "mfu",
// "peak_bytes_planned", "peak_bytes_measured"}: as StepReport documents them. What is not a number is null.
JsonObject StepMetrics(const StepReport& report);

// {"step", "evaluation_loss", "evaluation_tokens"}: after `step` steps.
JsonObject EvaluationMetrics(int64_t step, const EvaluationReport& report);

}  // namespace shale
