// cuDNN itself, told of a GPU in JSON, over a driver that stands in: what it answers where there is none.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/cuda/cudnn/cudnn_graphs.h"
#include "tests/kernels/cuda/cudnn/described_gpus.h"

namespace shale::testing {

// For a program that runs where Bazel runs its tests. NotFound where cuDNN is not installed.
absl::StatusOr<std::unique_ptr<cuda::CudnnGraphs>> LoadCudnnFor(const DescribedGpu& gpu);

// The workspace of the kernel that cuDNN likes best. Fails if it has none.
absl::StatusOr<int64_t> NeededBytes(cuda::CudnnGraphs& graphs, const cuda::AttentionKey& key);

}  // namespace shale::testing
