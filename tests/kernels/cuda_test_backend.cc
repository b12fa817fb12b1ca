#include "tests/kernels/cuda_test_backend.h"

#include <algorithm>
#include <utility>

#include "gtest/gtest.h"
#include "kernels/check.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/device/cuda/cuda_device.h"

namespace shale::testing {

TestBackend CudaTestBackend(CudaTestBackendOptions options) {
  TestBackend backend{
      .name = options.name,
      .family = "cuda",
      .create_device = [runtime = options.runtime]() -> std::unique_ptr<Device> {
        return *CudaDevice::Create(runtime(), {});
      },
      .create_ops =
          [matmuls = options.create_matmuls, attention = options.create_attention] {
            return CreateCudaOps({.matmuls = matmuls(), .attention = attention ? attention() : nullptr});
          },
      .reports_bad_indices = false,
      .keeps_nans = options.keeps_nans};
  if (options.placement == Placement::kTogether) return backend;
  // Does not allocate through the device, whose arenas are longer than they say.
  backend.allocate = [runtime = options.runtime](Device&,
                                                 int64_t size_bytes) -> absl::StatusOr<std::shared_ptr<std::byte>> {
    SHALE_ASSIGN_OR_RETURN(void* memory, runtime().Malloc(std::max<int64_t>(1, size_bytes)));
    return std::shared_ptr<std::byte>(static_cast<std::byte*>(memory), [runtime](std::byte* freed) {
      const absl::Status status = runtime().Free(freed);
      EXPECT_TRUE(status.ok()) << status;
    });
  };
  return backend;
}

}  // namespace shale::testing
