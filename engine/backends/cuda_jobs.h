// Backends of jobs with runtime.device CUDA: GPUs through the CUDA runtime, matmuls by cuBLASLt, attention by cuDNN or
// by the engine's own kernels, collectives by NCCL or in process. The libraries are loaded when they are first needed,
// from the places where kernels/device/cuda/shared_library.h searches.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "engine/api/backend.h"
#include "engine/config/job.h"
#include "engine/runtime/backend.h"
#include "kernels/op_backend.h"

namespace shale {

// Creates the ops of one of `ranks` ranks on the CPU, for updates on the host.
using HostOpsFactory = std::function<std::unique_ptr<Ops>(int64_t ranks)>;

// Creates the backend that `job` describes, for a process at `place`, whose store must outlive it. Without
// `create_host_ops` its jobs cannot update on the host. Returns InvalidArgument if the tuning table cannot be read, if
// there are too many ranks for collectives without NCCL, or if only NCCL could join the processes and the job excludes
// it. Calls PrepareCudaJobEnvironment. The backend does not refer to the job.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaJobBackend(const Job& job, HostOpsFactory create_host_ops,
                                                              const BackendPlace& place = {});

// See PrepareEnvironment (engine/api/backend.h).
void PrepareCudaJobEnvironment(const Job& job);

// See PlanningMachine (engine/api/backend.h).
absl::StatusOr<Machine> CudaPlanningMachine(const Job& job, HostOpsFactory create_host_ops, int64_t hardware_threads);

}  // namespace shale
