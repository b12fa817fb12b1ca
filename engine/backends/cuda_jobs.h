// Jobs with runtime.device CUDA: GPUs by the CUDA runtime, products by cuBLASLt, collectives by NCCL or in process. The
// libraries are loaded when they are first needed, from where kernels/device/cuda/shared_library.h looks.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/config/job.h"
#include "engine/runtime/backend.h"

namespace shale {

// InvalidArgument for a tuning table that cannot be read. Sets environment variables of CUDA and NCCL: call it before
// there are threads.
absl::StatusOr<std::unique_ptr<Backend>> CreateCudaJobBackend(const Job& job);

}  // namespace shale
