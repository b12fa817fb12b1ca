// Reads and cuts the metrics of a former run (metrics.jsonl).
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace shale {

// Larger metrics are refused.
inline constexpr int64_t kMaxMetricsBytes = int64_t{4} << 30;

// Returns the step of the last row that has one, or 0 if there is no such row or no file.
absl::StatusOr<int64_t> LastStepOfMetrics(const std::string& path);

// Keeps only the rows up to `step` in the metrics.jsonl at `path`, because the run repeats the later steps. Also
// removes rows without a step and rows that are not JSON, which a crash can leave. Does nothing if there is no file.
absl::Status CutMetrics(const std::string& path, int64_t step);

}  // namespace shale
