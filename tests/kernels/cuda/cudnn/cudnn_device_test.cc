// The cases of attention_on_device.h with stand-ins for CUDA and cuDNN, so that they are known to find what they look
// for. On a GPU, where there is one: cudnn_gpu_cases.cc.
#include "kernels/cuda/host/stand_in_runtime.h"
#include "tests/kernels/cuda/cudnn/attention_on_device.h"
#include "tests/kernels/cuda/cudnn/attention_stand_in.h"

namespace shale::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(
    StandIns, AttentionOnDeviceTest,
    ::testing::Values(AttentionMachine{
        .name = "stand_in",
        .create_runtime = []() -> std::unique_ptr<CudaRuntime> {
          return std::make_unique<cuda_on_host::StandInRuntime>();
        },
        .load = [](const CudaDeviceProperties&) -> absl::StatusOr<std::unique_ptr<cuda::AttentionGraphs>> {
          static auto& library = *new AttentionStandIn;
          return library.Graphs();
        }}),
    MachineName);

}  // namespace
}  // namespace shale::testing
