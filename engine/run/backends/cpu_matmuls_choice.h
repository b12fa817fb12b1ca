// Decides what computes the matmuls of a job on the CPU, and remembers it in a folder.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/plan/config/job.h"

namespace shale {

// See DecideCpuProducts (engine/api/backend.h). Makes `cache_folder` if it is missing. It gets a file for each
// kind of processor and dtype, which holds the name of the choice. An empty name stands for a folder that cannot be
// written.
absl::StatusOr<std::string> DecideCpuJobProducts(Job& job, const std::string& cache_folder);

}  // namespace shale
