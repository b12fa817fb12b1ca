// The CUDA backend: ranks are threads of one process, with one or several ranks on a GPU.
//
// Its kernels are linked separately: a program links either //kernels/cuda:device_kernels, or
// //tests/kernels/cuda/host:kernels if its `runtime` stands in for a GPU.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/run/runtime/backend.h"
#include "kernels/cuda/backends.h"
#include "kernels/device/cuda/cuda_device.h"
#include "kernels/device/cuda/runtime.h"

namespace shale {

// Creates the communicators of the ranks of a group that this process holds, which are on these GPUs.
using CudaGroupFactory = std::function<absl::StatusOr<std::vector<std::unique_ptr<Communicator>>>(
    const GroupMembers& group, absl::Span<const int> ordinals)>;

struct CudaBackendOptions {
  int ranks_per_device = 1;
  // Create the backends that compute matmuls and attention for one rank on a GPU with these properties. If `gpu` is
  // null, the backends are for planning. `create_attention` may be empty or return null: Shale's own kernels then
  // compute attention.
  std::function<std::unique_ptr<cuda::MatMulBackend>(const CudaDeviceProperties* gpu)> create_matmuls;
  std::function<std::unique_ptr<cuda::AttentionBackend>(const CudaDeviceProperties* gpu)> create_attention;
  // Creates the ops with which one of `ranks` ranks computes on the host (Ops::host). If empty, programs cannot update
  // on the host.
  std::function<std::unique_ptr<Ops>(int64_t ranks)> create_host_ops;
  // Whether the matmuls of `create_matmuls` round fp32 operands to TF32, which has another nominal peak.
  bool allow_tf32 = false;
  // If empty, the backend uses stream-ordered collectives (sharding/comm/stream_ordered.h), which join the ranks of one
  // process. With several GPUs these require that each GPU can access the memory of the others.
  CudaGroupFactory create_group;
  // Whether the ranks that share a GPU are processes, each of which has CUDA and its libraries to itself. Refused where
  // the host has a GPU for each.
  bool processes_share = false;
  // With other processes of the job on the host, the GPUs of this one begin after those of the processes before it. A
  // launcher may instead let each process see its own GPUs only.
  HostShare share;
  // Allocates the arenas. If empty, cudaMalloc does.
  CudaMemorySource memory;
  // Returns the libraries for Describe, such as "cuBLASLt 13.1.0, NCCL 2.28.9", once they are loaded. May be empty.
  std::function<std::string()> describe_libraries;
};

// Creates a backend on which rank r of this process uses GPU r / ranks_per_device, in CUDA's numbering of the visible
// GPUs, counted from the first one of this process. These GPUs must have compute capability 8.0 or newer. DefaultBudget
// is the memory of the smallest of them, less 2 GiB for CUDA and its libraries, 1 GiB for NCCL if `create_group` joins
// several GPUs, and 1 GiB on GPUs since Blackwell, divided by the ranks on one GPU. Processes that share a GPU each
// need these libraries, so there the memory is divided first. The part for host memory is 80 % of the machine's memory,
// divided by all ranks.
std::unique_ptr<Backend> CreateCudaBackend(std::shared_ptr<CudaRuntime> runtime, CudaBackendOptions options);

}  // namespace shale
