// Cuts the metrics of a run that resumes from an earlier step.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace shale {

// Keeps only the rows up to `step` in the metrics.jsonl at `path`, because the run repeats the later steps. Also
// removes rows without a step and rows that are not JSON, which a crash can leave. Does nothing if there is no file.
absl::Status CutMetrics(const std::string& path, int64_t step);

}  // namespace shale
