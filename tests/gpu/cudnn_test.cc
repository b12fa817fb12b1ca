// Tests attention on the real cuDNN. This file is part of builds that have cuDNN's headers; there a missing library is
// a failure.
#include "tests/gpu/gpu.h"
#include "tests/kernels/cuda/cudnn/attention_on_device.h"

namespace shale::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Gpu, AttentionOnDeviceTest,
                         ::testing::Values(AttentionMachine{
                             .backend = {.name = "cudnn",
                                         .placement = Placement::kTogether,
                                         .runtime = []() -> CudaRuntime& { return *Gpu(); },
                                         .create_matmuls = [] { return CreateGpuMatMuls(); }},
                             .load = LoadGpuCudnn}),
                         MachineName);

}  // namespace
}  // namespace shale::testing
