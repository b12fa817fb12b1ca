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

// Returns the program's only CUDA runtime. The first call must come before other threads start.
std::shared_ptr<CudaRuntime> Gpu();

// Returns OK if this program's kernels run on GPU 0. Otherwise the error says in one line what is missing.
absl::Status FindGpu();

std::unique_ptr<CudaDevice> CreateGpuDevice(const CudaDeviceOptions& options = {});

// Creates the cuBLASLt matmul backend that training steps use.
std::unique_ptr<cuda::MatMulBackend> CreateGpuMatMuls(int64_t workspace_bytes = int64_t{32} << 20);

// Loads cuDNN for GPU 0. Fails if the library is not found.
absl::StatusOr<std::unique_ptr<cuda::AttentionGraphs>> LoadGpuCudnn();

}  // namespace shale::testing
