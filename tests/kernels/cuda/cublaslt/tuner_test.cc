// Tests which algorithm the tuner finds, and with which operands.
#include "kernels/cuda/cublaslt/tuner.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/host/stand_in_runtime.h"
#include "kernels/ops/matmul.h"
#include "tests/kernels/cuda/cublaslt/cublaslt_stand_in.h"

namespace shale::testing {
namespace {

using cuda::CublasLtFunctions;
using cuda::MatMulAlgorithm;
using cuda::MatMulKey;
using cuda::TunedMatMul;
using cuda::Tuner;
using ::testing::IsEmpty;

// Slow() calls `librarys_matmul`. It delays every algorithm except the third that it has `seen`.
decltype(&cublasLtMatmul) librarys_matmul = nullptr;
std::vector<MatMulAlgorithm> seen;
constexpr size_t kFast = 2;

size_t PlaceOf(const cublasLtMatmulAlgo_t& algorithm) {
  MatMulAlgorithm words;
  std::copy_n(algorithm.data, words.size(), words.begin());
  const auto found = std::find(seen.begin(), seen.end(), words);
  const size_t place = found - seen.begin();
  if (found == seen.end()) seen.push_back(words);
  return place;
}

cublasStatus_t Slow(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, const void* alpha, const void* a,
                    cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                    const void* c, cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                    const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                    cudaStream_t stream) {
  if (PlaceOf(*algorithm) != kFast) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return librarys_matmul(handle, matmul, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm,
                         workspace, workspace_bytes, stream);
}

class TunerTest : public ::testing::Test {
 protected:
  TunerTest() { device_ = *CudaDevice::Create(runtime_, {}); }
  ~TunerTest() override {
    device_.reset();
    EXPECT_THAT(runtime_.misuse(), IsEmpty());
    EXPECT_TRUE(runtime_.CheckAllReleased().ok()) << runtime_.CheckAllReleased();
    EXPECT_EQ(library_.alive, 0);
  }

  absl::StatusOr<TunedMatMul> Tune(const MatMul& op, const CublasLtFunctions& functions) {
    auto tuner = Tuner::Create(runtime_, *device_, functions, Tuner::OperandBytes(op),
                               {.workspace_bytes = 4096, .repetitions = 3, .flush_bytes = 1000});
    if (!tuner.ok()) return tuner.status();
    return (*tuner)->Tune(op);
  }

  cuda_on_host::StandInRuntime runtime_;
  CublasLtStandIn library_;
  std::unique_ptr<CudaDevice> device_;
};

const MatMul kOp = {.a = Tensor::Contiguous(DType::kBFloat16, {5, 7}),
                    .b = Tensor::Contiguous(DType::kBFloat16, {7, 3}),
                    .c_MN = Tensor::Contiguous(DType::kFloat32, {5, 3})};

TEST_F(TunerTest, EveryAlgorithmIsTimedAndTheFastestIsFound) {
  library_.algorithms = 4;
  library_.unusable = 1;
  const auto any = Tune(kOp, library_.functions());
  ASSERT_TRUE(any.ok()) << any.status();
  EXPECT_EQ(any->timed, 3);
  EXPECT_EQ(library_.calls.size(), 3 * (2 + 3));

  CublasLtFunctions functions = library_.functions();
  librarys_matmul = functions.Matmul;
  functions.Matmul = Slow;
  const auto tuned = Tune(kOp, functions);
  ASSERT_TRUE(tuned.ok()) << tuned.status();
  EXPECT_EQ(tuned->key, MatMulKey::Of(kOp, false));
  ASSERT_EQ(seen.size(), 3);
  EXPECT_EQ(tuned->algorithm, seen[kFast]);
  EXPECT_GE(tuned->first_seconds, 0.004);
  EXPECT_GT(tuned->seconds, 0);
  EXPECT_LT(tuned->seconds, tuned->first_seconds);
}

TEST_F(TunerTest, OperandsAreAlignedAsTheKeySays) {
  MatMul op = kOp;
  op.a.where.offset_bytes = 32;
  op.b.where.offset_bytes = 2;
  op.c_MN.where.offset_bytes = 512;
  op.c_MN.where.shard_stride_bytes = 48;  // Some ranks have it at multiples of 16 only.
  op.accumulate = true;
  const auto tuned = Tune(op, library_.functions());  // The stand-in refuses operands that are less aligned.
  ASSERT_TRUE(tuned.ok()) << tuned.status();
  EXPECT_EQ(tuned->key.align_a, 32);
  EXPECT_EQ(tuned->key.align_b, 2);
  EXPECT_EQ(tuned->key.align_c, 16);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(library_.calls.back().b_data) % 64, 32);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(library_.calls.back().a_data) % 4, 2);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(library_.calls.back().d_data) % 32, 16);
  EXPECT_EQ(library_.calls.back().workspace_bytes, 4096);
}

TEST_F(TunerTest, AnAlgorithmThatIsRefusedWhenItStartsIsPassedOver) {
  static int starts;  // The first start, and so the first algorithm, is refused.
  starts = 0;
  library_.algorithms = 3;
  CublasLtFunctions functions = library_.functions();
  librarys_matmul = functions.Matmul;
  functions.Matmul = [](auto... arguments) {
    return starts++ == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : librarys_matmul(arguments...);
  };
  const auto tuned = Tune(kOp, functions);
  ASSERT_TRUE(tuned.ok()) << tuned.status();
  EXPECT_EQ(tuned->timed, 2);
  EXPECT_EQ(starts, 1 + 2 * (2 + 3));

  functions.Matmul = [](auto...) { return CUBLAS_STATUS_EXECUTION_FAILED; };
  const absl::Status none = Tune(kOp, functions).status();
  EXPECT_EQ(none.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(none.message()), ::testing::HasSubstr("none of the 3 algorithms that cuBLASLt proposes"));
}

TEST_F(TunerTest, AMatMulThatNoAlgorithmComputesIsAnError) {
  library_.unusable = library_.algorithms;
  EXPECT_EQ(Tune(kOp, library_.functions()).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace shale::testing
