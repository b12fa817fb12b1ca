// The CUDA backend of ops: our kernels, products by a library, attention by a library or our kernels.
//
// It calls the kernels of kernels.h, of which a program links one set: //kernels/cuda:device_kernels for a GPU, or
// //kernels/cuda/host:kernels for none.
#pragma once

#include <memory>

#include "kernels/cuda/backends.h"
#include "kernels/op_backend.h"

namespace shale {

struct CudaOpsOptions {
  std::unique_ptr<cuda::ProductBackend> products;
  std::unique_ptr<cuda::AttentionBackend> attention;  // Null: our kernels.
};

// Launches want a CudaStream. REQUIRES: options.products.
std::unique_ptr<Ops> CreateCudaOps(CudaOpsOptions options);

}  // namespace shale
