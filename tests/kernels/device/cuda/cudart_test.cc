#include "kernels/device/cuda/cudart.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/cuda/cuda_device.h"

namespace shale {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CudartTest, WithoutADriverADeviceIsRefusedWithWhatIsMissingAndWhatToDo) {
  std::unique_ptr<CudaRuntime> runtime = CreateCudart();
  if (runtime->DeviceCount().ok()) GTEST_SKIP() << "this machine has a driver";
  const absl::Status error = CudaDevice::Create(*runtime, {}).status();
  EXPECT_EQ(error.code(), absl::StatusCode::kFailedPrecondition) << error;
  EXPECT_THAT(std::string(error.message()),
              AllOf(HasSubstr("cudaGetDeviceCount: "), HasSubstr("wanted an NVIDIA GPU and a driver for CUDA "),
                    HasSubstr("nvidia-smi"), HasSubstr("run on the CPU")));
  EXPECT_EQ(runtime->Malloc(16).status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace shale
