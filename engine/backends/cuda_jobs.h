// Backends of jobs with runtime.device CUDA: GPUs through the CUDA runtime, matmuls by cuBLASLt, attention by cuDNN or
// by the engine's own kernels, collectives by NCCL or in process. The libraries are loaded when they are first needed,
// from the places where kernels/device/cuda/shared_library.h searches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/config/job.h"
#include "engine/runtime/backend.h"
#include "kernels/op_backend.h"

namespace shale {

// Creates the ops of one of `ranks` ranks on the CPU, for updates on the host.
using HostOpsFactory = std::function<std::unique_ptr<Ops>(int64_t ranks)>;

// Creates the backend that `job` describes. Without `create_host_ops` its jobs cannot update on the host. Returns
// InvalidArgument if the tuning table cannot be read, or if there are too many ranks for collectives without NCCL. Sets
// environment variables of CUDA and NCCL, so call it before there are threads. The backend does not refer to the job.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaJobBackend(const Job& job, HostOpsFactory create_host_ops);

// See PlanningMachine (engine/backends/job_backend.h).
absl::StatusOr<Machine> CudaPlanningMachine(const Job& job, HostOpsFactory create_host_ops, int64_t hardware_threads);

}  // namespace shale
