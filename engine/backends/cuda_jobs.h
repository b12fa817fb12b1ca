// Backends of jobs with runtime.device CUDA: GPUs through the CUDA runtime, matmuls by cuBLASLt, attention by cuDNN or
// by the engine's own kernels, collectives by NCCL or in process. The libraries are loaded when they are first needed,
// from the places where kernels/device/cuda/shared_library.h searches.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/config/job.h"
#include "engine/runtime/backend.h"

namespace shale {

// Creates the backend that `job` describes. Returns InvalidArgument if the tuning table cannot be read, or if there are
// too many ranks for collectives without NCCL. Sets environment variables of CUDA and NCCL, so call it before there are
// threads. The backend does not refer to the job.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaJobBackend(const Job& job);

}  // namespace shale
