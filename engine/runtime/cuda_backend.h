// GPUs as a backend: ranks are threads of one process, one or several to a GPU.
//
// Its kernels come from //kernels/cuda:device_kernels, or from //kernels/cuda/host:kernels where `runtime` stands in
// for a GPU: a program links one of the two.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/runtime/backend.h"
#include "kernels/cuda/backends.h"
#include "kernels/device/cuda/cuda_device.h"
#include "kernels/device/cuda/runtime.h"

namespace shale {

struct CudaBackendOptions {
  int ranks_per_device = 1;
  // What multiplies matrices, and what computes attention, for one rank on such a GPU; null: for planning. The second
  // may be empty: our kernels do it then.
  std::function<std::unique_ptr<cuda::ProductBackend>(const CudaDeviceProperties* gpu)> create_products;
  std::function<std::unique_ptr<cuda::AttentionBackend>(const CudaDeviceProperties* gpu)> create_attention;
  // Whether `create_products` rounds the operands of fp32 products to TF32: another nominal peak.
  bool allow_tf32 = false;
  // Communicators between ranks on these GPUs, in rank order. Empty: stream-ordered collectives
  // (sharding/comm/stream_ordered.h), which on several GPUs want each to reach the others' memory.
  std::function<absl::StatusOr<std::vector<std::unique_ptr<Communicator>>>(absl::Span<const int> ordinals)>
      create_group;
  // Where arenas come from; empty: cudaMalloc.
  CudaMemorySource memory;
  // For Describe: "cuBLASLt 13.1.0, NCCL 2.28.9", once they are loaded. May be empty.
  std::function<std::string()> describe_libraries;
};

// Rank r is on GPU r / ranks_per_device, as CUDA counts the visible ones; they must be of compute capability 8.0 or
// newer. DefaultBudget is the memory of the smallest GPU among those, less 2 GiB for CUDA and its libraries, divided by
// the ranks on it; of host memory 80 % of the machine's, divided by all ranks.
std::unique_ptr<Backend> CreateCudaBackend(std::shared_ptr<CudaRuntime> runtime, CudaBackendOptions options);

}  // namespace shale
