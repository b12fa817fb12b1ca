// Backends of jobs with runtime.device CPU.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/config/job.h"
#include "engine/runtime/backend.h"

namespace shale {

// Creates the backend that `job` describes. The backend does not refer to the job. Returns InvalidArgument if
// SHALE_MAX_CPU_ISA is set to an unknown instruction set (kernels/cpu/instruction_set.h).
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuJobBackend(const Job& job);

}  // namespace shale
