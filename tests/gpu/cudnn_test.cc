// Attention by the real cuDNN, of which the build had the headers: that it is not found here is a failure.
#include "tests/gpu/gpu.h"
#include "tests/kernels/cuda/cudnn/attention_on_device.h"

namespace shale::testing {
namespace {

INSTANTIATE_TEST_SUITE_P(Gpu, AttentionOnDeviceTest,
                         ::testing::Values(AttentionMachine{
                             .backend = {.name = "cudnn",
                                         .placement = Placement::kTogether,
                                         .runtime = []() -> CudaRuntime& { return *Gpu(); },
                                         .create_products = [] { return CreateGpuProducts(); }},
                             .load = LoadGpuCudnn}),
                         MachineName);

}  // namespace
}  // namespace shale::testing
