// Asks cuDNN itself on a machine without a GPU. cuDNN gets a description of a GPU in JSON, and a stand-in driver.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/cuda/cudnn/cudnn_graphs.h"
#include "tests/kernels/cuda/cudnn/described_gpus.h"

namespace shale::testing {

// Loads cuDNN for a described GPU. Returns NotFound if cuDNN is not installed. REQUIRES: the program runs where Bazel
// runs its tests.
absl::StatusOr<std::unique_ptr<cuda::CudnnGraphs>> LoadCudnnFor(const DescribedGpu& gpu);

// Returns the workspace of the kernel that cuDNN likes best. Returns an error if cuDNN has no kernel.
absl::StatusOr<int64_t> NeededBytes(cuda::CudnnGraphs& graphs, const cuda::AttentionKey& key);

}  // namespace shale::testing
