#include "kernels/device/cuda/cudart.h"

#include <cstdlib>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/cuda/cuda_device.h"

namespace shale {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(CudartTest, AsksForAllKernelsAtOnceAndForEveryQueueUnlessToldOtherwise) {
  unsetenv("CUDA_MODULE_LOADING");
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "4", /*overwrite=*/1);
  (void)CreateCudart();
  EXPECT_STREQ(getenv("CUDA_MODULE_LOADING"), "EAGER");
  EXPECT_STREQ(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "4");
  unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  (void)CreateCudart();
  EXPECT_STREQ(getenv("CUDA_DEVICE_MAX_CONNECTIONS"), "32");
}

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
