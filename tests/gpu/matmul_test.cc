// Tests matmuls on the real cuBLASLt, with the sizes and kinds of a training step. The operands are small integers, so
// that every sum is exact in fp32 and its bits are known whatever the order of summation.
#include "kernels/ops/matmul.h"

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/cuda_ops.h"
#include "tests/gpu/gpu.h"
#include "tests/gpu/gpu_tensor.h"

namespace shale::testing {
namespace {

// Returns element i of an operand: -1, 0 or 1.
int ValueOf(uint64_t seed, int64_t i) {
  uint64_t z = seed + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15;  // splitmix64 (Steele, Lea and Flood, 2014).
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return static_cast<int>((z >> 40) % 3) - 1;
}

struct Case {
  std::string name;
  int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
  DType act = DType::kBFloat16, out = DType::kBFloat16;
  bool bias = false;
};

class GpuMatMulTest : public ::testing::Test {
 protected:
  // Launches c = a b, and with `accumulate` also c += a b. Then checks 200 elements of c, the last one among them.
  void Check(const Case& c, bool accumulate) {
    SCOPED_TRACE(c.name + (accumulate ? " accumulated" : ""));
    const auto filled = [&](DType dtype, std::initializer_list<int64_t> shape, uint64_t seed) {
      GpuTensor tensor(*device_, *stream_, dtype, shape);
      tensor.Fill([seed](int64_t i) { return static_cast<float>(ValueOf(seed, i)); });
      return tensor;
    };
    const GpuTensor a = c.transpose_a ? filled(c.act, {c.k, c.m}, 1) : filled(c.act, {c.m, c.k}, 1);
    const GpuTensor b = c.transpose_b ? filled(c.act, {c.n, c.k}, 2) : filled(c.act, {c.k, c.n}, 2);
    const GpuTensor bias = filled(c.out, {c.n}, 3), matmul(*device_, *stream_, c.out, {c.m, c.n});
    MatMul op{.a = a.tensor(),
              .b = b.tensor(),
              .c_MN = matmul.tensor(),
              .transpose_a = c.transpose_a,
              .transpose_b = c.transpose_b};
    if (c.bias) op.bias_N = bias.tensor();
    const int64_t scratch_bytes = ops_->ScratchBytes(op);
    const std::unique_ptr<Arena> scratch = *device_->Allocate(scratch_bytes);
    const int matmuls = accumulate ? 2 : 1;
    for (int i = 0; i < matmuls; ++i) {
      op.accumulate = i > 0;
      ASSERT_TRUE(Validate(op).ok()) << Validate(op);
      const absl::Status launched = ops_->Launch(op, {scratch->base(), scratch_bytes}, *stream_);
      ASSERT_TRUE(launched.ok()) << launched;
    }
    std::mt19937_64 random(c.m * 31 + c.n);
    for (int probe = 0; probe < 200; ++probe) {
      const int64_t row = probe == 0 ? c.m - 1 : random() % c.m, column = probe == 0 ? c.n - 1 : random() % c.n;
      int64_t sum = c.bias ? ValueOf(3, column) : 0;
      for (int64_t i = 0; i < c.k; ++i) {
        sum += ValueOf(1, c.transpose_a ? i * c.m + row : row * c.k + i) *
               ValueOf(2, c.transpose_b ? column * c.k + i : i * c.n + column);
      }
      const auto want = static_cast<float>(matmuls * sum);
      const float got = matmul.At(row * c.n + column);
      ASSERT_EQ(got, c.out == DType::kBFloat16 ? ToFloat(RoundToBFloat16(want)) : want)
          << row << ", " << column << " of " << c.m << " x " << c.n;
    }
  }

  const std::unique_ptr<CudaDevice> device_ = CreateGpuDevice();
  const std::unique_ptr<Stream> stream_ = *device_->CreateStream("compute");
  const std::unique_ptr<Ops> ops_ = CreateCudaOps({.matmuls = CreateGpuMatMuls()});
};

TEST_F(GpuMatMulTest, AreExactInEveryDirectionOfALinearLayer) {
  constexpr int64_t kTokens = 4096, kIn = 896, kOut = 9728;
  Check({.name = "forward", .m = kTokens, .n = kOut, .k = kIn, .transpose_b = true, .bias = true}, false);
  Check({.name = "gradient of the input", .m = kTokens, .n = kIn, .k = kOut}, false);
  for (const bool accumulate : {false, true}) {
    Check({.name = "gradient of the weight",
           .m = kOut,
           .n = kIn,
           .k = kTokens,
           .transpose_a = true,
           .out = DType::kFloat32},
          accumulate);
  }
}

// Heads, widths and vocabularies may be odd. Then rows begin at odd addresses.
TEST_F(GpuMatMulTest, AreExactAtOddWidths) {
  for (const DType act : {DType::kFloat32, DType::kBFloat16}) {
    Check({.name = "odd", .m = 1023, .n = 777, .k = 513, .act = act, .out = act, .bias = true}, false);
    Check({.name = "odd, transposed",
           .m = 777,
           .n = 513,
           .k = 1023,
           .transpose_a = true,
           .act = act,
           .out = DType::kFloat32},
          true);
  }
}

// cuBLASLt 13.1.1 on an H100 proposes algorithms for such a K that leave out its last 8 elements ([Note: lost tails] in
// kernels/cuda/cublaslt/matmul_plan.h).
TEST_F(GpuMatMulTest, AreExactWhereKHasATail) {
  for (const bool transpose_b : {false, true}) {
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 8}, {32, 32}, {128, 128}}) {
      Check({.name = "a long K", .m = m, .n = n, .k = 11528, .transpose_b = transpose_b, .out = DType::kFloat32},
            false);
    }
  }
}

// The logits have 4.6 GiB, and element indices exceed 2^31.
TEST_F(GpuMatMulTest, AreExactBeyondTwoToThe31Elements) {
  Check({.name = "logits", .m = 16384, .n = 151936, .k = 128, .transpose_b = true}, false);
}

// TF32 would round the operands to 11 bits.
TEST_F(GpuMatMulTest, OperandsOfF32AreNotRounded) {
  GpuTensor a(*device_, *stream_, DType::kFloat32, {256, 256}), b(*device_, *stream_, DType::kFloat32, {256, 256}),
      c(*device_, *stream_, DType::kFloat32, {256, 256});
  constexpr float kFine = 1 + 0x1p-20f;
  a.Fill([](int64_t i) { return i / 256 == i % 256 ? kFine : 0.0f; });
  b.Fill([](int64_t i) { return static_cast<float>(i % 256); });
  const MatMul op{.a = a.tensor(), .b = b.tensor(), .c_MN = c.tensor()};
  const int64_t scratch_bytes = ops_->ScratchBytes(op);
  const std::unique_ptr<Arena> scratch = *device_->Allocate(scratch_bytes);
  const absl::Status launched = ops_->Launch(op, {scratch->base(), scratch_bytes}, *stream_);
  ASSERT_TRUE(launched.ok()) << launched;
  for (int64_t i = 0; i < 256; ++i) EXPECT_EQ(c.At(7 * 256 + i), kFine * static_cast<float>(i));
}

}  // namespace
}  // namespace shale::testing
