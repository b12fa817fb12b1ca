// The GPU that //tests/gpu:gpu_tests runs on.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/backends.h"
#include "kernels/cuda/cudnn/attention_graph.h"
#include "kernels/device/cuda/cuda_device.h"
#include "kernels/device/cuda/runtime.h"

namespace shale::testing {

// CUDA's runtime, one for the program. The first call must come before there are threads.
std::shared_ptr<CudaRuntime> Gpu();

// Whether GPU 0 is one that this program's kernels run on: FailedPrecondition says what is missing, in one line.
absl::Status FindGpu();

std::unique_ptr<CudaDevice> CreateGpuDevice(const CudaDeviceOptions& options = {});

// Products by cuBLASLt, as a training step has them.
std::unique_ptr<cuda::ProductBackend> CreateGpuProducts(int64_t workspace_bytes = int64_t{32} << 20);

// cuDNN on GPU 0.
absl::StatusOr<std::unique_ptr<cuda::AttentionGraphs>> LoadGpuCudnn();

}  // namespace shale::testing
