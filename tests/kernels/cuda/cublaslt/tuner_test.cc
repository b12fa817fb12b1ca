// Tests which algorithm the tuner finds, and with which operands.
#include "kernels/cuda/cublaslt/tuner.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/matmul.h"
#include "tests/kernels/cuda/cublaslt/cublaslt_stand_in.h"
#include "tests/kernels/cuda/host/stand_in_runtime.h"

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

// The first impression of an algorithm takes a launch that is not timed and two that are.
constexpr int kScreening = 3, kRounds = 3, kLaunches = 4;

class TunerTest : public ::testing::Test {
 protected:
  TunerTest() { device_ = *CudaDevice::Create(runtime_, {}); }
  ~TunerTest() override {
    device_.reset();
    EXPECT_THAT(runtime_.misuse(), IsEmpty());
    EXPECT_TRUE(runtime_.CheckAllReleased().ok()) << runtime_.CheckAllReleased();
    EXPECT_EQ(library_.alive, 0);
  }

  absl::StatusOr<TunedMatMul> Tune(const MatMul& op, const CublasLtFunctions& functions, int finalists = 8) {
    auto tuner =
        Tuner::Create(runtime_, *device_, functions, Tuner::OperandBytes(op),
                      {.workspace_bytes = 4096, .finalists = finalists, .rounds = kRounds, .launches = kLaunches});
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
  EXPECT_EQ(library_.calls.size(), 3 * (kScreening + kRounds * kLaunches));

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

// Regression: each launch followed a flush of the cache and a pause, so that the GPU was cool.
TEST_F(TunerTest, FinalistsTakeTurnsBackToBackInRounds) {
  library_.algorithms = 3;
  ASSERT_TRUE(Tune(kOp, library_.functions()).ok());
  std::vector<uint64_t> names;
  for (const LtCall& call : library_.calls) names.push_back(call.algorithm.data[1]);
  ASSERT_EQ(names.size(), 3 * (kScreening + kRounds * kLaunches));
  // The order of the first round: the library's first, then the others as they were screened.
  std::vector<uint64_t> order;
  for (int i = 0; i < 3; ++i) order.push_back(names[3 * kScreening + i * kLaunches]);
  EXPECT_EQ(order[0], 0);
  std::vector<uint64_t> wanted;
  for (int i = 0; i < 3 * kScreening; ++i) wanted.push_back(i / kScreening);
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < 3; ++i) wanted.insert(wanted.end(), kLaunches, order[(round + i) % 3]);
  }
  EXPECT_EQ(names, wanted);
}

// An algorithm that is the fastest on a GPU that has just idled is not chosen for that.
TEST_F(TunerTest, WhatIsFastOnlyWhileTheGpuIsCoolLoses) {
  static int launches[2];
  launches[0] = launches[1] = 0;
  library_.algorithms = 2;
  CublasLtFunctions functions = library_.functions();
  librarys_matmul = functions.Matmul;
  functions.Matmul = [](cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, const void* alpha, const void* a,
                        cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                        const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                        cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                        size_t workspace_bytes, cudaStream_t stream) {
    // The second one is throttled from its fourth launch on.
    const uint64_t name = algorithm->data[1];
    const int milliseconds = name == 0 ? 2 : ++launches[1] > kScreening ? 6 : 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
    return librarys_matmul(handle, matmul, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm,
                           workspace, workspace_bytes, stream);
  };
  const auto tuned = Tune(kOp, functions);
  ASSERT_TRUE(tuned.ok()) << tuned.status();
  EXPECT_EQ(tuned->algorithm[1], 0);
  EXPECT_EQ(tuned->seconds, tuned->first_seconds);
}

MatMul Deep(int64_t k) {
  MatMul op = kOp;
  op.a = Tensor::Contiguous(DType::kBFloat16, {5, k});
  op.b = Tensor::Contiguous(DType::kBFloat16, {k, 3});
  return op;
}

// Besides the proposals: each tile, with K split as often as parts of 256 allow and the library can, in fp32 alone.
TEST_F(TunerTest, TilesAndSplitsOfKAreTimedWithSumsInOneOrder) {
  library_.algorithms = 2;
  library_.tiles = {11, 12, 13};
  library_.most_splits = 4;
  using Kind = std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>;  // Name, tile, split, reduction scheme.
  const auto kinds = [&](const MatMul& op) {
    library_.calls.clear();
    const auto tuned = Tune(op, library_.functions());
    EXPECT_TRUE(tuned.ok()) << tuned.status();
    std::set<Kind> kinds;
    for (const LtCall& call : library_.calls) {
      const auto& words = call.algorithm.data;
      kinds.insert({words[1], words[5], std::max<uint64_t>(1, words[6]), words[6] > 1 ? words[3] : 0});
    }
    if (tuned.ok()) {
      EXPECT_EQ(tuned->timed, std::ssize(kinds));
    }
    return kinds;
  };
  for (const int64_t k : {7, 512, 767, 2000}) {
    std::set<Kind> wanted;
    for (uint64_t name = 0; name < 2; ++name) {
      for (uint64_t tile = 11; tile <= 13; ++tile) {
        for (uint64_t split = 1; split <= 4; ++split) {
          if (split > 1 && k / static_cast<int64_t>(split) < 256) continue;
          wanted.insert({name, tile, split, split > 1 ? uint64_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE} : 0});
        }
      }
    }
    EXPECT_EQ(kinds(Deep(k)), wanted) << k;
  }
  // Six sums of each of 15 results do not fit beside the rest of the workspace.
  library_.wanted_workspace_bytes = 4096 - 3 * 60;
  for (const auto& [name, tile, split, scheme] : kinds(Deep(2000))) EXPECT_LE(split, 3);
}

// The fastest few of many are timed in rounds, and the library's first among them, however slow it is.
TEST_F(TunerTest, OnlyTheFastestOfManyAreTimedInRounds) {
  library_.algorithms = 1;
  library_.tiles = {11, 12, 13, 14, 15, 16};
  CublasLtFunctions functions = library_.functions();
  librarys_matmul = functions.Matmul;
  functions.Matmul = [](cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, const void* alpha, const void* a,
                        cublasLtMatrixLayout_t a_layout, const void* b, cublasLtMatrixLayout_t b_layout,
                        const void* beta, const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                        cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void* workspace,
                        size_t workspace_bytes, cudaStream_t stream) {
    std::this_thread::sleep_for(std::chrono::milliseconds(algorithm->data[5] == 14 ? 0 : 4));
    return librarys_matmul(handle, matmul, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algorithm,
                           workspace, workspace_bytes, stream);
  };
  const auto tuned = Tune(kOp, functions, /*finalists=*/2);
  ASSERT_TRUE(tuned.ok()) << tuned.status();
  EXPECT_EQ(tuned->timed, 6);
  EXPECT_EQ(library_.calls.size(), 6 * kScreening + 2 * kRounds * kLaunches);
  EXPECT_EQ(tuned->algorithm[5], 14);
  EXPECT_GE(tuned->first_seconds, 0.003);
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
  EXPECT_EQ(starts, 1 + 2 * (kScreening + kRounds * kLaunches));

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
