// The metrics of a run that goes on from an earlier step.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace shale {

// Replaces metrics.jsonl by its rows up to `step`. The steps after it are taken again, and rows that are no JSON, which
// only a crash leaves, go too. A file that is missing stays so.
absl::Status CutMetrics(const std::string& path, int64_t step);

}  // namespace shale
