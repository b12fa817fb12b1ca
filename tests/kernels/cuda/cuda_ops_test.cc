// Tests the CUDA backend of ops on a stand-in for a GPU: which library or kernel computes an op, and where its operands
// lie.
#include "kernels/cuda/cuda_ops.h"

#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/device/cpu/cpu_device.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/matmul.h"
#include "kernels/reference/reference_ops.h"
#include "tests/kernels/cuda/host/host_matmuls.h"
#include "tests/kernels/cuda/run_on_zeros.h"
#include "tests/kernels/device/cuda/device_on_stand_in.h"
#include "tests/kernels/valid_ops.h"

namespace shale::testing {
namespace {

std::unique_ptr<Ops> OpsForTests(std::unique_ptr<cuda::AttentionBackend> attention = nullptr) {
  return CreateCudaOps(
      {.matmuls = *cuda_on_host::CreateHostMatMuls(CreateReferenceOps()), .attention = std::move(attention)});
}

class CudaOpsTest : public ::testing::Test {
 protected:
  absl::Status RunOnZeros(Ops& ops, const Op& op) { return testing::RunOnZeros(op, ops, device_, *stream_); }

  DeviceOnStandIn device_;
  std::unique_ptr<Stream> stream_ = *device_.CreateStream("compute");
};

// Starting a kernel must not follow a device pointer, and an op must not write past its scratch. Otherwise the process
// or the device would end.
TEST_F(CudaOpsTest, EveryOpRunsInDeviceMemory) {
  std::unique_ptr<Ops> ops = OpsForTests();
  for (const Op& op : ValidOps()) {
    SCOPED_TRACE(NameOf(op));
    EXPECT_TRUE(ops->Prepare(op, ops->ScratchBytes(op)).ok());
    const absl::Status status = RunOnZeros(*ops, op);
    ASSERT_TRUE(status.ok()) << status;
  }
}

// Takes heads of one width only, and counts the forward ops that are started.
class CountingAttention : public cuda::AttentionBackend {
 public:
  CountingAttention(int64_t width, int& started) : width_(width), started_(started) {}
  bool Takes(const AttentionForward& op) const override { return op.q_BSHD.dim(-1) == width_; }
  bool Takes(const AttentionBackward& op) const override { return op.q_BSHD.dim(-1) == width_; }
  int64_t ScratchBytes(const AttentionForward&) const override { return 1111; }
  int64_t ScratchBytes(const AttentionBackward&) const override { return 2222; }
  absl::Status Prepare(const AttentionForward&, int64_t) override { return absl::OkStatus(); }
  absl::Status Prepare(const AttentionBackward&, int64_t) override { return absl::DataLossError("prepared"); }
  absl::Status Enqueue(const AttentionForward&, Scratch, cuda::StreamHandle) override {
    ++started_;
    return absl::OkStatus();
  }
  absl::Status Enqueue(const AttentionBackward&, Scratch, cuda::StreamHandle) override { return absl::OkStatus(); }

 private:
  int64_t width_;
  int& started_;
};

TEST_F(CudaOpsTest, AttentionGoesToTheLibraryIfThatTakesIt) {
  for (const Op& op : ValidOps()) {
    const auto* forward = op.As<AttentionForward>();
    const auto* backward = op.As<AttentionBackward>();
    if (forward == nullptr && backward == nullptr) continue;
    const int64_t width = forward != nullptr ? forward->q_BSHD.dim(-1) : backward->q_BSHD.dim(-1);
    int started = 0;
    std::unique_ptr<Ops> ours = OpsForTests();
    std::unique_ptr<Ops> takes = OpsForTests(std::make_unique<CountingAttention>(width, started));
    std::unique_ptr<Ops> declines = OpsForTests(std::make_unique<CountingAttention>(width + 1, started));
    EXPECT_EQ(takes->ScratchBytes(op), forward != nullptr ? 1111 : 2222);
    EXPECT_EQ(declines->ScratchBytes(op), ours->ScratchBytes(op));
    EXPECT_EQ(takes->Prepare(op, takes->ScratchBytes(op)).code(),
              forward != nullptr ? absl::StatusCode::kOk : absl::StatusCode::kDataLoss);
    EXPECT_TRUE(declines->Prepare(op, declines->ScratchBytes(op)).ok());
    EXPECT_TRUE(RunOnZeros(*declines, op).ok());
    EXPECT_EQ(started, 0);
    EXPECT_TRUE(RunOnZeros(*takes, op).ok());
    EXPECT_EQ(started, forward != nullptr ? 1 : 0);
  }
}

// GPUs without tensor cores for fp8 can quantize, but not multiply, and cuBLASLt has blockwise scales for Hopper alone.
// A GPU that is not known is taken for one that has all.
TEST_F(CudaOpsTest, MatMulsOfFloat8AreRefusedByGpusThatLackThem) {
  const auto check = [](int major, int minor, const Op& op) {
    return CreateCudaOps({.matmuls = *cuda_on_host::CreateHostMatMuls(CreateReferenceOps()),
                          .gpu = {.major = major, .minor = minor}})
        ->CheckAvailable(op);
  };
  int float8 = 0, blockwise = 0;
  for (const Op& op : ValidOps()) {
    const auto* matmul = op.As<MatMul>();
    const bool multiplies = matmul != nullptr && matmul->is_float8();
    const bool in_blocks = multiplies && matmul->scales != Float8Scales::kOne;
    float8 += multiplies;
    blockwise += in_blocks;
    for (const auto& [major, minor] : {std::pair(0, 0), {8, 9}, {9, 0}, {10, 0}, {12, 0}}) {
      const absl::Status status = check(major, minor, op);
      const bool refused = in_blocks && major != 0 && major != 9;
      EXPECT_EQ(status.code(), refused ? absl::StatusCode::kUnimplemented : absl::StatusCode::kOk) << status;
      EXPECT_EQ(absl::StrContains(status.message(), "precision.fp8_scaling TENSORWISE"), refused) << status;
    }
    for (const auto& [major, minor] : {std::pair(8, 0), {8, 6}}) {
      const absl::Status status = check(major, minor, op);
      EXPECT_EQ(status.code(), multiplies ? absl::StatusCode::kUnimplemented : absl::StatusCode::kOk) << status;
      EXPECT_EQ(absl::StrContains(status.message(), absl::StrCat("this GPU has compute capability 8.", minor)),
                multiplies)
          << status;
      EXPECT_EQ(absl::StrContains(status.message(), "precision.matmuls AS_COMPUTED"), multiplies) << status;
    }
  }
  EXPECT_GT(float8, 1);
  EXPECT_GT(blockwise, 0);
}

TEST_F(CudaOpsTest, AStreamOfAnotherDeviceAndOpsOfAnotherDeviceAreRefused) {
  std::unique_ptr<Ops> ops = OpsForTests();
  CpuDevice cpu;
  std::unique_ptr<Stream> stream = *cpu.CreateStream("compute");
  EXPECT_EQ(ops->Launch(ValidOps().front(), {}, *stream).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cuda_on_host::CreateHostMatMuls(OpsForTests()).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace shale::testing
