// Runs a kernel of each file of kernels/cuda. Each file is a module, which the driver loads by itself. This shows in
// seconds whether the program has code for this GPU, before tests that take long.
#include <memory>

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/kernels.h"
#include "kernels/ops/matmul.h"
#include "tests/gpu/gpu.h"
#include "tests/kernels/cuda/run_on_zeros.h"
#include "tests/kernels/valid_ops.h"

namespace shale::testing {
namespace {

class GpuModules : public ::testing::Test {
 protected:
  const std::unique_ptr<CudaDevice> device_ = CreateGpuDevice();
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("compute");
};

TEST_F(GpuModules, AKernelOfEachOpRuns) {
  const std::unique_ptr<Ops> ops = CreateCudaOps({.matmuls = CreateGpuMatMuls()});
  for (const Op& op : ValidOps()) {
    if (op.Is<MatMul>()) continue;  // A library computes it, which may be missing here.
    const absl::Status status = RunOnZeros(op, *ops, *device_, *stream_);
    ASSERT_TRUE(status.ok()) << "the kernel of " << NameOf(op) << " does not run: " << status.message();
  }
}

TEST_F(GpuModules, KernelsThatAreNoOpsRun) {
  const std::unique_ptr<Arena> arena = *device_->Allocate(4 * sizeof(float));
  const Tensor bias = Tensor::Contiguous(DType::kFloat32, {2}, arena->base());
  const Tensor rows = Tensor::Contiguous(DType::kFloat32, {1, 2}, arena->base() + bias.extent_bytes());
  const std::byte* inputs[] = {arena->base()};
  CudaStream& stream = **CudaStream::From(*stream_);
  absl::Status status = stream.Enqueue([&](cuda::StreamHandle on) { return cuda::BroadcastBias(bias, rows, on); });
  if (status.ok()) status = stream.Synchronize();
  ASSERT_TRUE(status.ok()) << "BroadcastBias does not run: " << status.message();
  status = stream.Enqueue(
      [&](cuda::StreamHandle on) { return cuda::SumRanks(DType::kFloat32, inputs, arena->base(), 4, on); });
  if (status.ok()) status = stream.Synchronize();
  ASSERT_TRUE(status.ok()) << "SumRanks does not run: " << status.message();
}

}  // namespace
}  // namespace shale::testing
