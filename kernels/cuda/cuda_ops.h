// The CUDA backend of Ops. A library computes matmuls, a library or Shale's own kernels compute attention, and Shale's
// own kernels compute everything else.
//
// Programs that use it link one implementation of kernels.h: //kernels/cuda:device_kernels to run on a GPU, or
// //tests/kernels/cuda/host:kernels to run without one.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "kernels/cuda/availability.h"
#include "kernels/cuda/backends.h"
#include "kernels/op_backend.h"

namespace shale {

struct CudaOpsOptions {
  std::unique_ptr<cuda::MatMulBackend> matmuls;
  std::unique_ptr<cuda::AttentionBackend> attention;  // Null: Shale's own kernels compute all attention.
  std::unique_ptr<Ops> host;                          // The result of Ops::host. May be null.
  cuda::ComputeCapability gpu;                        // Of the GPU, for CheckAvailable.
  // Called when an attention that `attention` does not take is prepared, forward or backward. Shale's own kernels then
  // compute it. May be empty.
  std::function<void(const Op&)> on_declined;
  // Called before each Prepare. It must make the rank's GPU the current device of the calling thread. May be empty.
  std::function<absl::Status()> use_device;
};

// Creates the CUDA backend. Launches fail on a stream that is not a CudaStream. REQUIRES: options.matmuls is set.
std::unique_ptr<Ops> CreateCudaOps(CudaOpsOptions options);

}  // namespace shale
