// Tests the bench of 8-bit formats without a GPU: its arithmetic, and what it asks of cuBLASLt.
#include <cuda_fp8.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/float8.h"
#include "tests/kernels/cuda/cublaslt/cublaslt_stand_in.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"
#include "tools/bench/format_matmuls.h"

namespace shale::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kOneScale = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;

// NVIDIA's conversion in software, which its headers use where a GPU has no instruction.
template <class Format>
void ExpectAsNvidias(__nv_fp8_interpretation_t theirs) {
  for (uint32_t code = 0; code < 1 << 16; ++code) {
    const float number = ToFloat(BFloat16{static_cast<uint16_t>(code)});
    __nv_bfloat16_raw value;
    value.x = static_cast<unsigned short>(code);
    const uint8_t converted = __nv_cvt_bfloat16raw_to_fp8(value, __NV_SATFINITE, theirs);
    const uint8_t ours = SaturateToFloat8<Format>(number).bits;
    ASSERT_TRUE(std::isnan(number) ? std::isnan(ToFloat(Format{converted})) : converted == ours)
        << code << ": " << int{converted} << ", " << int{ours};
  }
}

TEST(Float8Test, EveryBFloat16BecomesWhatNvidiasSoftwareMakesOfIt) {
  ExpectAsNvidias<Float8E4M3>(__NV_E4M3);
  ExpectAsNvidias<Float8E5M2>(__NV_E5M2);
}

class FormatMatMulsTest : public ::testing::Test {
 protected:
  FormatMatMulsTest() { device_ = *CudaDevice::Create(runtime_, {}); }
  ~FormatMatMulsTest() override {
    device_.reset();
    EXPECT_THAT(runtime_.misuse(), IsEmpty());
    EXPECT_TRUE(runtime_.CheckAllReleased().ok()) << runtime_.CheckAllReleased();
    EXPECT_EQ(library_.alive, 0);
    EXPECT_EQ(library_.misuse, "");
  }

  std::vector<FormatRate> Measure(int64_t m, int64_t n, int64_t k, DType c_dtype) {
    const auto matmuls = FormatMatMuls::Create(runtime_, *device_, library_.functions());
    EXPECT_TRUE(matmuls.ok()) << matmuls.status();
    const auto rates = (*matmuls)->Measure(m, n, k, c_dtype, /*rounds=*/2, /*launches=*/3);
    EXPECT_TRUE(rates.ok()) << rates.status();
    return rates.ok() ? *rates : std::vector<FormatRate>();
  }

  cuda_on_host::StandInRuntime runtime_;
  CublasLtStandIn library_;
  std::unique_ptr<CudaDevice> device_;
};

TEST_F(FormatMatMulsTest, EveryFormatIsMeasuredInTurns) {
  std::vector<std::string> formats;
  for (const FormatRate& rate : Measure(32, 48, 16, DType::kFloat32)) {
    formats.push_back(rate.matmul.ToString());
    EXPECT_GT(rate.seconds, 0) << rate.why_not;
    EXPECT_EQ(rate.why_not, "");
  }
  EXPECT_THAT(formats, ElementsAre("bf16", "e4m3 x e4m3, fast", "e4m3 x e4m3", "e5m2 x e4m3, fast", "e5m2 x e4m3",
                                   "e4m3 x e4m3, blockwise", "e5m2 x e4m3, blockwise"));
  ASSERT_EQ(library_.calls.size(), 7 + 2 * 7 * 3);
  for (int i = 0; i < 7; ++i) {
    const LtCall& call = library_.calls[i];
    EXPECT_EQ(call.d.rows, 48);  // The library stores by columns.
    EXPECT_EQ(call.d.columns, 32);
    EXPECT_EQ(call.d.type, CUDA_R_32F);
    EXPECT_EQ(call.a.type, i == 0 ? CUDA_R_16BF : CUDA_R_8F_E4M3);
    EXPECT_EQ(call.b.type, i == 0 ? CUDA_R_16BF : i < 3 || i == 5 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2);
    EXPECT_EQ(call.matmul.fast_accumulation, i == 1 || i == 3);
    // A result in fp32 is the gradient of a weight, whose operands have tiles.
    EXPECT_EQ(call.matmul.a_scale_mode, i < 5 ? kOneScale : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    EXPECT_EQ(call.matmul.b_scale_mode, i < 5 ? kOneScale : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
    for (int launch = 0; launch < 3; ++launch) {  // Of the first round; the second begins with the second format.
      EXPECT_EQ(library_.calls[7 + 3 * i + launch].a_data, call.a_data);
      EXPECT_EQ(library_.calls[28 + 3 * i + launch].b_data, library_.calls[(i + 1) % 7].b_data);
    }
  }
}

TEST_F(FormatMatMulsTest, WeightsHaveBlocksWhereTheResultIsAnActivation) {
  for (const FormatRate& rate : Measure(32, 48, 144, DType::kBFloat16)) EXPECT_GT(rate.seconds, 0) << rate.why_not;
  for (int i = 0; i < 7; ++i) {  // The library's a is our b.
    EXPECT_EQ(library_.calls[i].matmul.a_scale_mode, i < 5 ? kOneScale : CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
    EXPECT_EQ(library_.calls[i].matmul.b_scale_mode, i < 5 ? kOneScale : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
  }
}

TEST_F(FormatMatMulsTest, ASizeThatEightBitsDoNotFitSaysSo) {
  const std::vector<FormatRate> rates = Measure(32, 40, 16, DType::kBFloat16);
  ASSERT_EQ(rates.size(), 7);
  EXPECT_GT(rates[0].seconds, 0);
  for (int i = 1; i < 7; ++i) {
    EXPECT_EQ(rates[i].seconds, 0);
    EXPECT_THAT(rates[i].why_not, HasSubstr("cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_NOT_SUPPORTED"));
  }
}

}  // namespace
}  // namespace shale::testing
