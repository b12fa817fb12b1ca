// Backends of jobs with runtime.device CPU.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/config/job.h"
#include "engine/runtime/backend.h"
#include "engine/runtime/cpu_backend.h"

namespace shale {

// Returns the ops, what computes matmuls, and the threads of a job on CPUs that run `hardware_threads` threads at once.
// The result does not refer to the job.
CpuBackendOptions CpuOptionsOf(const Job& job, int64_t hardware_threads);

// Creates the backend that `job` describes. The backend does not refer to the job. Returns InvalidArgument if
// SHALE_MAX_CPU_ISA is set to an unknown instruction set (kernels/cpu/instruction_set.h).
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuJobBackend(const Job& job);

// See PlanningMachine (engine/api/backend.h).
absl::StatusOr<Machine> CpuPlanningMachine(const Job& job, int64_t hardware_threads);

}  // namespace shale
