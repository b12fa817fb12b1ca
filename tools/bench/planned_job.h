// Resolves the job of a bench as `train` would, without a limit on memory.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/api/plan.h"

namespace shale {

// Reads the job at `path` with `overrides` and resolves it. Its data need not exist. All errors are the user's.
absl::StatusOr<ResolvedJob> ResolveBenchJob(const std::string& path, const std::vector<std::string>& overrides);

}  // namespace shale
