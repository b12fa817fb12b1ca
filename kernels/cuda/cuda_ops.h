// The CUDA backend of ops: our kernels, products by a library, attention by a library or our kernels.
//
// It calls the kernels of kernels.h, of which a program links one set: //kernels/cuda:device_kernels for a GPU, or
// //kernels/cuda/host:kernels for none.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "kernels/cuda/backends.h"
#include "kernels/op_backend.h"
#include "kernels/ops.h"

namespace shale {

struct CudaOpsOptions {
  std::unique_ptr<cuda::ProductBackend> products;
  std::unique_ptr<cuda::AttentionBackend> attention;  // Null: our kernels.
  // Called with an attention that is prepared and that `attention` does not take: our kernels do it, which are slower.
  // May be empty.
  std::function<void(const AttentionForward&)> on_declined;
  // Called before anything is prepared: makes the rank's GPU that of the calling thread. May be empty.
  std::function<absl::Status()> use_device;
};

// Launches want a CudaStream. REQUIRES: options.products.
std::unique_ptr<Ops> CreateCudaOps(CudaOpsOptions options);

}  // namespace shale
