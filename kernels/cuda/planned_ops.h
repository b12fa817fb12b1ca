// The ops of a GPU for planning: they say what ops need there, and run none. They build without a CUDA toolkit.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/cuda/availability.h"
#include "kernels/cuda/backends.h"
#include "kernels/op_backend.h"

namespace shale {

struct PlannedCudaOpsOptions {
  int64_t matmul_workspace_bytes = 0;                 // The scratch of every matmul.
  std::unique_ptr<cuda::AttentionBackend> attention;  // As in CudaOpsOptions (cuda_ops.h). It is only asked for sizes.
  std::unique_ptr<Ops> host;                          // The result of Ops::host. May be null.
  cuda::ComputeCapability gpu;                        // Of the GPU, for CheckAvailable.
};

// Creates ops whose sizes are those of CreateCudaOps with the same backends. Launch and Prepare return
// FailedPrecondition.
std::unique_ptr<Ops> CreatePlannedCudaOps(PlannedCudaOpsOptions options);

}  // namespace shale
