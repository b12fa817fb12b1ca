// Tests the kernels as nvcc compiles them, on a machine that may have no GPU.
#include <cuda_runtime_api.h>

#include <cmath>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/kernels.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/norm.h"

namespace shale::cuda {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 3, kWidth = 37;

// Returns an op for which y = x * rstd is a row of ones except for epsilon, if `memory` holds ones.
RmsNormForward NormOf(float* memory) {
  float* at = memory;
  const auto take = [&](std::initializer_list<int64_t> shape) {
    const Tensor tensor = Tensor::Contiguous(DType::kFloat32, shape, at);
    at += tensor.elements();
    return tensor;
  };
  RmsNormForward op;
  op.x = take({kRows, kWidth});
  op.weight_C = take({kWidth});
  op.y = take({kRows, kWidth});
  op.rstd_R = take({kRows});
  op.epsilon = 1e-5f;
  return op;
}
constexpr int64_t kFloats = 2 * kRows * kWidth + kWidth + kRows;

int Devices() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

TEST(DeviceKernelsTest, WithoutADriverAStartIsAnErrorThatNamesTheKernelAndTheReason) {
  if (Devices() > 0) GTEST_SKIP() << "this machine has a GPU";
  std::vector<float> memory(kFloats, 1.0f);
  const absl::Status status = cuda::Run(NormOf(memory.data()), Scratch{}, /*stream=*/nullptr);
  ASSERT_FALSE(status.ok());
  int devices = 0;
  EXPECT_THAT(std::string(status.message()), HasSubstr("RmsNormForward: launch of "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(cudaGetErrorString(cudaGetDeviceCount(&devices))));
}

class NoMatMuls : public MatMulBackend {
 public:
  int64_t ScratchBytes(const MatMul&) const override { return 0; }
  absl::Status Prepare(const MatMul&) override { return absl::OkStatus(); }
  absl::Status Enqueue(const MatMul&, Scratch, StreamHandle) override { return absl::OkStatus(); }
};

// The test links only if the linker has found every kernel that the backend may start.
TEST(DeviceKernelsTest, TheBackendOfOpsLinksWithThem) {
  EXPECT_NE(CreateCudaOps({.matmuls = std::make_unique<NoMatMuls>()}), nullptr);
}

TEST(DeviceKernelsTest, AKernelRunsOnTheGpu) {
  if (Devices() == 0) GTEST_SKIP() << "this machine has no GPU";
  float* memory = nullptr;
  ASSERT_EQ(cudaMallocManaged(reinterpret_cast<void**>(&memory), kFloats * sizeof(float)), cudaSuccess);
  for (int64_t i = 0; i < kFloats; ++i) memory[i] = 1.0f;
  const RmsNormForward op = NormOf(memory);
  ASSERT_TRUE(cuda::Run(op, Scratch{}, /*stream=*/nullptr).ok());
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  // One rounding each in the mean, the root and the quotient.
  for (int64_t i = 0; i < kRows * kWidth; ++i) EXPECT_NEAR(op.y.as<float>()[i], 1 / std::sqrt(1 + 1e-5), 4e-7);
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

}  // namespace
}  // namespace shale::cuda
