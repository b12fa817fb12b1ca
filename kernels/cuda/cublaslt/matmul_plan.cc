#include "kernels/cuda/cublaslt/matmul_plan.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/ops/matmul.h"

namespace shale::cuda {
namespace {

constexpr uint32_t kReductionSchemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

static_assert(sizeof(MatMulAlgorithm) == sizeof(cublasLtMatmulAlgo_t));

cublasLtMatmulAlgo_t AsLibrarys(const MatMulAlgorithm& algorithm) {
  cublasLtMatmulAlgo_t librarys;
  std::copy(algorithm.begin(), algorithm.end(), librarys.data);
  return librarys;
}

MatMulAlgorithm AsOurs(const cublasLtMatmulAlgo_t& librarys) {
  MatMulAlgorithm algorithm;
  std::copy_n(librarys.data, algorithm.size(), algorithm.begin());
  return algorithm;
}

cudaDataType_t TypeOf(DType dtype) { return dtype == DType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F; }

int32_t OperationOf(bool transpose) { return transpose ? CUBLAS_OP_T : CUBLAS_OP_N; }

}  // namespace

MatMulPlan::MatMulPlan(const CublasLtFunctions& functions, cublasLtHandle_t handle, const MatMulKey& key,
                       int64_t workspace_bytes)
    : functions_(functions),
      handle_(handle),
      key_(key),
      workspace_bytes_(workspace_bytes),
      matmul_(nullptr, functions.MatmulDescDestroy),
      a_(nullptr, functions.MatrixLayoutDestroy),
      b_(nullptr, functions.MatrixLayoutDestroy),
      c_(nullptr, functions.MatrixLayoutDestroy) {}

absl::Status MatMulPlan::WithKey(const absl::Status& error) const {
  return absl::Status(error.code(), absl::StrCat("MatMul: ", error.message(), " for ", key_.ToString()));
}

absl::Status MatMulPlan::StatusOf(const char* call, cublasStatus_t status) const {
  return status == CUBLAS_STATUS_SUCCESS ? absl::OkStatus() : WithKey(functions_.StatusOf(call, status));
}

template <class Value>
absl::Status MatMulPlan::Set(cublasLtMatmulDescAttributes_t attribute, Value value) {
  return StatusOf("cublasLtMatmulDescSetAttribute",
                  functions_.MatmulDescSetAttribute(matmul_.get(), attribute, &value, sizeof(value)));
}

absl::Status MatMulPlan::CreateLayout(DType dtype, int64_t rows, int64_t columns, int64_t ld,
                                      Owned<cublasLtMatrixLayoutOpaque_t>& layout) const {
  cublasLtMatrixLayout_t created = nullptr;
  SHALE_RETURN_IF_ERROR(StatusOf("cublasLtMatrixLayoutCreate",
                                 functions_.MatrixLayoutCreate(&created, TypeOf(dtype), rows, columns, ld)));
  layout.reset(created);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<MatMulPlan>> MatMulPlan::Create(const CublasLtFunctions& functions,
                                                               cublasLtHandle_t handle, const MatMulKey& key,
                                                               int64_t workspace_bytes) {
  std::unique_ptr<MatMulPlan> plan(new MatMulPlan(functions, handle, key, workspace_bytes));
  SHALE_RETURN_IF_ERROR(plan->Describe());
  return plan;
}

absl::Status MatMulPlan::Describe() {
  const cublasComputeType_t compute = key_.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  cublasLtMatmulDesc_t created = nullptr;
  SHALE_RETURN_IF_ERROR(
      StatusOf("cublasLtMatmulDescCreate", functions_.MatmulDescCreate(&created, compute, CUDA_R_32F)));
  matmul_.reset(created);
  SHALE_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSA, OperationOf(key_.transpose_b)));
  SHALE_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_TRANSB, OperationOf(key_.transpose_a)));
  if (key_.bias) {
    SHALE_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_EPILOGUE, static_cast<uint32_t>(CUBLASLT_EPILOGUE_BIAS)));
    // The heuristic derives the alignment of the bias from this address, and does not read from it.
    SHALE_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(key_.align_bias)));
  }
  // A row in Shale is a column in the library.
  const MatMulKey& k = key_;
  SHALE_RETURN_IF_ERROR(CreateLayout(k.ab, k.transpose_a ? k.m : k.k, k.transpose_a ? k.k : k.m, k.lda, a_));
  SHALE_RETURN_IF_ERROR(CreateLayout(k.ab, k.transpose_b ? k.k : k.n, k.transpose_b ? k.n : k.k, k.ldb, b_));
  return CreateLayout(k.c, k.n, k.m, k.ldc, c_);
}

absl::StatusOr<std::vector<MatMulAlgorithm>> MatMulPlan::Candidates(int most) const {
  cublasLtMatmulPreference_t created = nullptr;
  SHALE_RETURN_IF_ERROR(StatusOf("cublasLtMatmulPreferenceCreate", functions_.MatmulPreferenceCreate(&created)));
  const Owned<cublasLtMatmulPreferenceOpaque_t> preference(created, functions_.MatmulPreferenceDestroy);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    return StatusOf("cublasLtMatmulPreferenceSetAttribute",
                    functions_.MatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
  };
  const auto alignment = [](int64_t bytes) { return static_cast<uint32_t>(bytes); };
  SHALE_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_bytes_)));
  SHALE_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductionSchemes));
  SHALE_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment(key_.align_b)));
  SHALE_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignment(key_.align_a)));
  SHALE_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignment(key_.align_c)));
  SHALE_RETURN_IF_ERROR(prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignment(key_.align_c)));

  std::vector<cublasLtMatmulHeuristicResult_t> results(most);
  int found = 0;
  const cublasStatus_t status = functions_.MatmulAlgoGetHeuristic(
      handle_, matmul_.get(), b_.get(), a_.get(), c_.get(), c_.get(), preference.get(), most, results.data(), &found);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) SHALE_RETURN_IF_ERROR(StatusOf("cublasLtMatmulAlgoGetHeuristic", status));
  std::vector<MatMulAlgorithm> candidates;
  for (int i = 0; i < found; ++i) {
    if (results[i].state == CUBLAS_STATUS_SUCCESS) candidates.push_back(AsOurs(results[i].algo));
  }
  if (!candidates.empty()) return candidates;
  return absl::UnimplementedError(absl::StrCat(
      "MatMul: cublasLtMatmulAlgoGetHeuristic: ", functions_.GetStatusName(status), ", no algorithm within ",
      workspace_bytes_, " bytes of workspace for ", key_.ToString(), "; a larger workspace may help"));
}

absl::Status MatMulPlan::Check(const cublasLtMatmulAlgo_t& algorithm) const {
  cublasLtMatmulHeuristicResult_t needs = {};
  SHALE_RETURN_IF_ERROR(functions_.StatusOf(
      "cublasLtMatmulAlgoCheck",
      functions_.MatmulAlgoCheck(handle_, matmul_.get(), b_.get(), a_.get(), c_.get(), c_.get(), &algorithm, &needs)));
  if (needs.workspaceSize > static_cast<uint64_t>(workspace_bytes_)) {
    return absl::ResourceExhaustedError(absl::StrCat("the algorithm needs ", needs.workspaceSize,
                                                     " bytes of workspace, but only ", workspace_bytes_,
                                                     " are available"));
  }
  uint32_t scheme = 0;
  size_t written = 0;
  SHALE_RETURN_IF_ERROR(
      functions_.StatusOf("cublasLtMatmulAlgoConfigGetAttribute",
                          functions_.MatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                                  &scheme, sizeof(scheme), &written)));
  if ((scheme & ~kReductionSchemes) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the algorithm adds the parts of a split K in c's dtype (reduction scheme ", scheme, "); wanted fp32"));
  }
  return absl::OkStatus();
}

absl::Status MatMulPlan::Use(const MatMulAlgorithm& algorithm) {
  const cublasLtMatmulAlgo_t librarys = AsLibrarys(algorithm);
  const absl::Status refusal = Check(librarys);
  if (!refusal.ok()) return WithKey(refusal);
  algorithm_ = librarys;
  return absl::OkStatus();
}

absl::Status MatMulPlan::UseFirstOf(const std::vector<MatMulAlgorithm>& algorithms) {
  SHALE_CHECK(!algorithms.empty()) << key_.ToString();
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string refusals;
  for (size_t i = 0; i < algorithms.size(); ++i) {
    const cublasLtMatmulAlgo_t librarys = AsLibrarys(algorithms[i]);
    const absl::Status refusal = Check(librarys);
    if (refusal.ok()) {
      algorithm_ = librarys;
      return absl::OkStatus();
    }
    if (i == 0) code = refusal.code();
    absl::StrAppend(&refusals, i == 0 ? "" : "; ", i + 1, ": ", refusal.message());
  }
  return WithKey(absl::Status(code, absl::StrCat("none of the ", algorithms.size(), " algorithms that cuBLASLt ",
                                                 "proposes can be used (", refusals, ")")));
}

absl::Status MatMulPlan::Enqueue(const MatMul& op, Scratch scratch, StreamHandle stream) {
  if (key_.bias) {
    SHALE_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(op.bias_N.data)));
  }
  const float alpha = op.scale, beta = key_.accumulate ? 1 : 0;
  return StatusOf("cublasLtMatmul",
                  functions_.Matmul(handle_, matmul_.get(), &alpha, op.b.data, b_.get(), op.a.data, a_.get(), &beta,
                                    op.c_MN.data, c_.get(), op.c_MN.data, c_.get(), &algorithm_, scratch.data,
                                    static_cast<size_t>(scratch.size_bytes), static_cast<cudaStream_t>(stream)));
}

}  // namespace shale::cuda
