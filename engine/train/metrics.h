// Makes the rows of metrics.jsonl.
#pragma once

#include "engine/io/json_lines.h"
#include "engine/train/reports.h"

namespace shale {

// Returns {"step", "tokens", "loss", "grad_norm", "learning_rate", "updated", "seconds", "tokens_per_second", "mfu",
// "peak_bytes_planned", "peak_bytes_measured"}. StepReport documents the values. NaN and infinity become null.
JsonObject StepMetrics(const StepReport& report);

// Returns {"step", "evaluation_loss", "evaluation_tokens"} of an evaluation after `step` steps.
JsonObject EvaluationMetrics(int64_t step, const EvaluationReport& report);

}  // namespace shale
