// Tests the library itself, where it is installed, as far as it works without a GPU.
#include "kernels/cuda/cublaslt/functions.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cublaslt/matmul_plan.h"
#include "kernels/ops/matmul.h"

namespace shale::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string MessageOf(const absl::Status& status) {
  return std::string(status.message().data(), status.message().size());
}

TEST(CublasLtFunctionsTest, WithoutTheLibraryTheErrorSaysWhatToInstall) {
  const absl::Status status = CublasLtFunctions::Load({.cuda_home = "", .loader_path = false}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(MessageOf(status), AllOf(HasSubstr("libcublasLt.so.13"), HasSubstr("nvidia-cublas")));
}

class InstalledTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto loaded = CublasLtFunctions::Load(LibrarySearch::FromEnvironment());
    if (!loaded.ok()) GTEST_SKIP() << loaded.status();
    functions_ = *loaded;
  }
  CublasLtFunctions functions_;
};

TEST_F(InstalledTest, TellsItsVersionAndTheNamesOfItsErrors) {
  EXPECT_EQ(functions_.GetVersion() / 10000, size_t{CUBLAS_VER_MAJOR});
  EXPECT_EQ(MessageOf(functions_.StatusOf("call", CUBLAS_STATUS_NOT_SUPPORTED)), "call: CUBLAS_STATUS_NOT_SUPPORTED");
  EXPECT_TRUE(functions_.StatusOf("call", CUBLAS_STATUS_SUCCESS).ok());
}

// The library accepts the size of each attribute. Only the query for an algorithm needs a handle.
TEST_F(InstalledTest, TakesOurDescriptors) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    const MatMul op = {.a = Tensor::Contiguous(dtype, {16, 64}),
                       .b = Tensor::Contiguous(dtype, {32, 64}),
                       .bias_N = Tensor::Contiguous(dtype, {32}),
                       .c_MN = Tensor::Contiguous(dtype, {16, 32}),
                       .transpose_b = true};
    const MatMulKey key = MatMulKey::Of(op, /*allow_tf32=*/true);
    const auto plan = MatMulPlan::Create(functions_, /*handle=*/nullptr, key, /*workspace_bytes=*/1 << 20);
    ASSERT_TRUE(plan.ok()) << plan.status();
    const absl::Status status = (*plan)->Candidates(1).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(MessageOf(status),
                AllOf(HasSubstr("cublasLtMatmulAlgoGetHeuristic: CUBLAS_STATUS_"), HasSubstr("m=16 n=32 k=64")));
  }
}

}  // namespace
}  // namespace shale::cuda
