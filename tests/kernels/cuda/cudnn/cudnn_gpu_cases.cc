// cuDNN on a GPU: linked into a test program, its cases run there, and are skipped where there is none.
#include "kernels/cuda/cudnn/cudnn_graphs.h"
#include "kernels/device/cuda/cudart.h"
#include "tests/kernels/cuda/cudnn/attention_on_device.h"

namespace shale::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Gpu, AttentionOnDeviceTest,
    ::testing::Values(AttentionMachine{
        .name = "cudnn",
        .create_runtime = CreateCudart,
        .load = [](const CudaDeviceProperties& gpu) -> absl::StatusOr<std::unique_ptr<cuda::AttentionGraphs>> {
          return cuda::LoadCudnn({.search = LibrarySearch::FromEnvironment(),
                                  .compute_major = gpu.compute_major,
                                  .compute_minor = gpu.compute_minor});
        }}),
    MachineName);

}  // namespace
}  // namespace shale::testing
