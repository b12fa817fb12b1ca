#include "tests/gpu/gpu.h"

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/check.h"
#include "kernels/cuda/cublaslt/cublaslt_matmuls.h"
#include "kernels/cuda/cudnn/cudnn_graphs.h"
#include "kernels/cuda/kernels.h"
#include "kernels/device/cuda/cudart.h"

namespace shale::testing {

std::shared_ptr<CudaRuntime> Gpu() {
  static const auto& runtime = *new std::shared_ptr<CudaRuntime>(CreateCudart());
  return runtime;
}

absl::Status FindGpu() {
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<CudaDevice> device, CudaDevice::Create(*Gpu(), {}));
  // Runs one of our kernels, which adds a number to itself. Only a launch shows whether the program holds code for this
  // GPU.
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> arena, device->Allocate(sizeof(float)));
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device->CreateStream("compute"));
  SHALE_ASSIGN_OR_RETURN(CudaStream * cuda_stream, CudaStream::From(*stream));
  const std::byte* inputs[] = {arena->base(), arena->base()};
  absl::Status status = cuda_stream->Enqueue(
      [&](cuda::StreamHandle handle) { return cuda::SumRanks(DType::kFloat32, inputs, arena->base(), 1, handle); });
  if (status.ok()) status = stream->Synchronize();
  if (status.ok()) return absl::OkStatus();
  const CudaDeviceProperties& gpu = device->properties();
  return absl::FailedPreconditionError(absl::StrCat(
      "the kernels of this program do not run on GPU 0 (", gpu.name, ", compute capability ", gpu.compute_major, ".",
      gpu.compute_minor, "): ", status.message(), ". Build it for that GPU: --//tools/build_defs:cuda_arch"));
}

std::unique_ptr<CudaDevice> CreateGpuDevice(const CudaDeviceOptions& options) {
  absl::StatusOr<std::unique_ptr<CudaDevice>> device = CudaDevice::Create(*Gpu(), options);
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

std::unique_ptr<cuda::MatMulBackend> CreateGpuMatMuls(int64_t workspace_bytes) {
  return cuda::CreateCublasLtMatMuls([] { return cuda::CublasLtFunctions::Load(LibrarySearch::FromEnvironment()); },
                                     {.workspace_bytes = workspace_bytes});
}

absl::StatusOr<std::unique_ptr<cuda::AttentionGraphs>> LoadGpuCudnn() {
  SHALE_ASSIGN_OR_RETURN(const CudaDeviceProperties gpu, Gpu()->Properties(0));
  return cuda::LoadCudnn({.search = LibrarySearch::FromEnvironment(),
                          .compute_major = gpu.compute_major,
                          .compute_minor = gpu.compute_minor});
}

}  // namespace shale::testing
