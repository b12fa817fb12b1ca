// GPUs as a backend: ranks are threads of one process, one or several to a GPU.
//
// Its kernels come from //kernels/cuda:device_kernels, or from //kernels/cuda/host:kernels where `runtime` stands in for
// a GPU: a program links one of the two.
#pragma once

#include <functional>
#include <memory>

#include "engine/runtime/backend.h"
#include "kernels/cuda/backends.h"
#include "kernels/device/cuda/runtime.h"

namespace shale {

struct CudaBackendOptions {
  int ranks_per_device = 1;
  // What multiplies matrices, and what computes attention, for one rank. Without the second our kernels do.
  std::function<std::unique_ptr<cuda::ProductBackend>()> create_products;
  std::function<std::unique_ptr<cuda::AttentionBackend>()> create_attention;
};

// Rank r is on GPU r / ranks_per_device, as CUDA counts the visible ones. The ranks meet by stream-ordered collectives
// (sharding/comm/stream_ordered.h), which on several GPUs want each to reach the others' memory.
std::unique_ptr<Backend> CreateCudaBackend(std::shared_ptr<CudaRuntime> runtime, CudaBackendOptions options);

}  // namespace shale
