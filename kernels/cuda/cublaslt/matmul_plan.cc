#include "kernels/cuda/cublaslt/matmul_plan.h"

#include <algorithm>
#include <set>
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

cudaDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kFloat16: return CUDA_R_16F;
    case DType::kBFloat16: return CUDA_R_16BF;
    case DType::kFloat8E4M3: return CUDA_R_8F_E4M3;
    case DType::kFloat8E5M2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
  }
}

// The attribute has this type.
int32_t ScaleModeOf(Float8Scales scales) {
  return scales == Float8Scales::kBlocks ? CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F
                                         : CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
}

// The address of a scale before a matmul is enqueued. Nothing reads from it.
const void* const kScaleToCome = reinterpret_cast<const void*>(uintptr_t{MatMulKey::kMaxAlignment});

// How many parts a split may have, and the least length of one: shorter ones do not repay adding up.
constexpr int32_t kSplits[] = {1, 2, 3, 4, 6, 8, 12, 16};
constexpr int64_t kLeastPart = 256;

// Returns the tiles that the library has for an algorithm. Empty if it does not tell.
std::vector<uint32_t> TilesOf(const CublasLtFunctions& functions, const cublasLtMatmulAlgo_t& algorithm) {
  size_t bytes = 0;
  if (functions.MatmulAlgoCapGetAttribute(&algorithm, CUBLASLT_ALGO_CAP_TILE_IDS, nullptr, 0, &bytes) !=
      CUBLAS_STATUS_SUCCESS) {
    return {};
  }
  std::vector<uint32_t> tiles(bytes / sizeof(uint32_t));
  if (tiles.empty() || functions.MatmulAlgoCapGetAttribute(&algorithm, CUBLASLT_ALGO_CAP_TILE_IDS, tiles.data(), bytes,
                                                           &bytes) != CUBLAS_STATUS_SUCCESS) {
    return {};
  }
  return tiles;
}

// Returns whether an algorithm can add the parts of a split K in fp32, in an order of its own.
bool Splits(const CublasLtFunctions& functions, const cublasLtMatmulAlgo_t& algorithm) {
  int32_t splits = 0;
  uint32_t schemes = 0;
  size_t written = 0;
  return functions.MatmulAlgoCapGetAttribute(&algorithm, CUBLASLT_ALGO_CAP_SPLITK_SUPPORT, &splits, sizeof(splits),
                                             &written) == CUBLAS_STATUS_SUCCESS &&
         functions.MatmulAlgoCapGetAttribute(&algorithm, CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK, &schemes,
                                             sizeof(schemes), &written) == CUBLAS_STATUS_SUCCESS &&
         splits != 0 && (schemes & kReductionSchemes) != 0;
}

// Sets tile and split of an algorithm. Returns whether the library takes them.
bool Configure(const CublasLtFunctions& functions, uint32_t tile, int32_t split, cublasLtMatmulAlgo_t& algorithm) {
  const uint32_t scheme = split > 1 ? kReductionSchemes : uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE};
  const auto set = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, const auto& value) {
    return functions.MatmulAlgoConfigSetAttribute(&algorithm, attribute, &value, sizeof(value)) ==
           CUBLAS_STATUS_SUCCESS;
  };
  return set(CUBLASLT_ALGO_CONFIG_TILE_ID, tile) && set(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, split) &&
         set(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, scheme);
}

// Returns whether an algorithm that splits K into so many parts leaves out its last elements ([Note: lost tails] in
// matmul_plan.h).
bool LosesTail(const MatMulKey& key, int32_t split) {
  constexpr int64_t kBlockBytes = 128;
  const int64_t block = kBlockBytes / SizeOf(key.a), tail = key.k % block;
  return tail != 0 && split > tail && key.k / block % split == 0;
}

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

absl::Status MatMulPlan::SetScales(const void* of_a, const void* of_b) {
  SHALE_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_b));
  return Set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_a);
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
  if (IsFloat8(key_.a)) {
    SHALE_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(key_.fast)));
    if (key_.scales != Float8Scales::kOne) {
      SHALE_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, ScaleModeOf(key_.scales)));
      SHALE_RETURN_IF_ERROR(Set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, ScaleModeOf(Float8Scales::kTiles)));
    }
    SHALE_RETURN_IF_ERROR(SetScales(kScaleToCome, kScaleToCome));
  }
  // A row in Shale is a column in the library.
  const MatMulKey& k = key_;
  SHALE_RETURN_IF_ERROR(CreateLayout(k.a, k.transpose_a ? k.m : k.k, k.transpose_a ? k.k : k.m, k.lda, a_));
  SHALE_RETURN_IF_ERROR(CreateLayout(k.b, k.transpose_b ? k.k : k.n, k.transpose_b ? k.n : k.k, k.ldb, b_));
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

std::vector<MatMulAlgorithm> MatMulPlan::Variants(const std::vector<MatMulAlgorithm>& proposals, int most) const {
  // Proposals that differ in tile and split alone are one family.
  struct Family {
    cublasLtMatmulAlgo_t base;
    std::vector<uint32_t> tiles;
    bool splits = false;
  };
  std::vector<Family> families;
  std::set<MatMulAlgorithm> seen(proposals.begin(), proposals.end()), bases;
  for (const MatMulAlgorithm& proposal : proposals) {
    cublasLtMatmulAlgo_t base = AsLibrarys(proposal);
    const std::vector<uint32_t> tiles = TilesOf(functions_, base);
    if (tiles.empty() || !Configure(functions_, tiles[0], 1, base) || !bases.insert(AsOurs(base)).second) continue;
    families.push_back({base, tiles, Splits(functions_, base)});
  }
  std::vector<MatMulAlgorithm> variants;
  for (const int32_t split : kSplits) {
    if (split > 1 && key_.k < split * kLeastPart) break;
    for (const Family& family : families) {
      if (split > 1 && !family.splits) continue;
      for (const uint32_t tile : family.tiles) {
        if (std::ssize(variants) >= most) return variants;
        cublasLtMatmulAlgo_t variant = family.base;
        if (!Configure(functions_, tile, split, variant) || !seen.insert(AsOurs(variant)).second) continue;
        if (Check(variant).ok()) variants.push_back(AsOurs(variant));
      }
    }
  }
  return variants;
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
  int32_t split = 1;
  const auto get = [&](cublasLtMatmulAlgoConfigAttributes_t attribute, auto& value) {
    size_t written = 0;
    return functions_.StatusOf(
        "cublasLtMatmulAlgoConfigGetAttribute",
        functions_.MatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), &written));
  };
  SHALE_RETURN_IF_ERROR(get(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, scheme));
  SHALE_RETURN_IF_ERROR(get(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, split));
  if ((scheme & ~kReductionSchemes) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the algorithm adds the parts of a split K in c's dtype (reduction scheme ", scheme, "); wanted fp32"));
  }
  if (LosesTail(key_, split)) {
    return absl::InvalidArgumentError(absl::StrCat("the algorithm splits K into ", split,
                                                   " parts and may leave out its last elements, a fault of cuBLASLt"));
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
  if (op.is_float8()) SHALE_RETURN_IF_ERROR(SetScales(op.scale_a.data, op.scale_b.data));
  const float alpha = op.scale, beta = key_.accumulate ? 1 : 0;
  return StatusOf("cublasLtMatmul",
                  functions_.Matmul(handle_, matmul_.get(), &alpha, op.b.data, b_.get(), op.a.data, a_.get(), &beta,
                                    op.c_MN.data, c_.get(), op.c_MN.data, c_.get(), &algorithm_, scratch.data,
                                    static_cast<size_t>(scratch.size_bytes), static_cast<cudaStream_t>(stream)));
}

}  // namespace shale::cuda
