#include "tests/kernels/cuda/cublaslt/cublaslt_stand_in.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/check.h"
#include "tests/kernels/cuda/cublaslt/cublaslt_arithmetic.h"
#include "tests/kernels/cuda/host/host_view.h"
#include "tests/kernels/cuda/host/stream.h"

namespace shale::testing {
namespace {

CublasLtStandIn* library = nullptr;

// What the words of an algorithm hold.
enum { kMagicWord, kNameWord, kQueryWord, kSchemeWord, kWorkspaceWord, kTileWord, kSplitWord };
constexpr uint64_t kMagic = 0x5ba1e, kNoQuery = ~uint64_t{0};

int handle_storage = 0;
const cublasLtHandle_t kHandle = reinterpret_cast<cublasLtHandle_t>(&handle_storage);

cublasStatus_t Misuse(std::string why) {
  library->misuse = std::move(why);
  return CUBLAS_STATUS_INVALID_VALUE;
}

// Returns the status that the test has ordered from `function`.
cublasStatus_t Ordered(const char* function) {
  return library->failing == function ? library->failure : CUBLAS_STATUS_SUCCESS;
}
#define RETURN_IF_ORDERED(function) \
  if (const cublasStatus_t ordered = Ordered(function); ordered != CUBLAS_STATUS_SUCCESS) return ordered

template <class Ours, class Opaque>
Ours* As(Opaque* opaque) {
  return reinterpret_cast<Ours*>(opaque);
}

template <class Ours, class Opaque>
cublasStatus_t Make(Opaque** opaque, Ours ours) {
  *opaque = reinterpret_cast<Opaque*>(new Ours(std::move(ours)));
  ++library->alive;
  return CUBLAS_STATUS_SUCCESS;
}

template <class Ours, class Opaque>
cublasStatus_t Drop(Opaque* opaque) {
  delete As<Ours>(opaque);
  --library->alive;
  return CUBLAS_STATUS_SUCCESS;
}

template <class Value>
cublasStatus_t Assign(Value& value, const void* from, size_t size) {
  if (size != sizeof(Value)) return Misuse("an attribute of another size");
  std::memcpy(&value, from, size);
  return CUBLAS_STATUS_SUCCESS;
}

size_t GetVersion() { return CublasLtStandIn::kVersion; }

const char* GetStatusName(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "CUBLAS_STATUS_SUCCESS";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "CUBLAS_STATUS_NOT_INITIALIZED";
    case CUBLAS_STATUS_INVALID_VALUE: return "CUBLAS_STATUS_INVALID_VALUE";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "CUBLAS_STATUS_NOT_SUPPORTED";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "CUBLAS_STATUS_EXECUTION_FAILED";
    default: return "CUBLAS_STATUS_OTHER";
  }
}

cublasStatus_t Create(cublasLtHandle_t* handle) {
  RETURN_IF_ORDERED("Create");
  *handle = kHandle;
  ++library->alive;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t Destroy(cublasLtHandle_t) {
  --library->alive;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t MatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows, uint64_t columns,
                                  int64_t ld) {
  RETURN_IF_ORDERED("MatrixLayoutCreate");
  if (rows == 0 || columns == 0) return Misuse("a matrix without elements");
  if (ld < static_cast<int64_t>(rows)) return Misuse("columns that overlap");
  return Make(layout, LtLayout{type, rows, columns, ld});
}

cublasStatus_t MatmulDescCreate(cublasLtMatmulDesc_t* matmul, cublasComputeType_t compute, cudaDataType_t scale) {
  RETURN_IF_ORDERED("MatmulDescCreate");
  return Make(matmul, LtMatMul{.compute = compute, .scale = scale});
}

cublasStatus_t MatmulDescSetAttribute(cublasLtMatmulDesc_t matmul, cublasLtMatmulDescAttributes_t attribute,
                                      const void* from, size_t size) {
  RETURN_IF_ORDERED("MatmulDescSetAttribute");
  LtMatMul& desc = *As<LtMatMul>(matmul);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return Assign(desc.transpose_a, from, size);
    case CUBLASLT_MATMUL_DESC_TRANSB: return Assign(desc.transpose_b, from, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return Assign(desc.epilogue, from, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return Assign(desc.bias, from, size);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM: return Assign(desc.fast_accumulation, from, size);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: return Assign(desc.a_scale, from, size);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: return Assign(desc.b_scale, from, size);
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE: return Assign(desc.a_scale_mode, from, size);
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE: return Assign(desc.b_scale_mode, from, size);
    default: return Misuse("an attribute that the stand-in does not know");
  }
}

cublasStatus_t MatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  RETURN_IF_ORDERED("MatmulPreferenceCreate");
  return Make(preference, LtPreference{});
}

cublasStatus_t MatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                            cublasLtMatmulPreferenceAttributes_t attribute, const void* from,
                                            size_t size) {
  RETURN_IF_ORDERED("MatmulPreferenceSetAttribute");
  LtPreference& p = *As<LtPreference>(preference);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return Assign(p.workspace_bytes, from, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return Assign(p.reduction_schemes, from, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return Assign(p.align_a, from, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return Assign(p.align_b, from, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return Assign(p.align_c, from, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return Assign(p.align_d, from, size);
    default: return Misuse("a preference that the stand-in does not know");
  }
}

// The rows of the table of supported types in NVIDIA's reference of cublasLtMatmul whose types Shale has: the compute
// type, and the types of A, of B, and of C and D. The scale type is f32 in all of them, and a bias has D's type, except
// that it is bf16 where operands have 8 bits and D is f32.
constexpr struct {
  cublasComputeType_t compute;
  cudaDataType_t a, b, cd;
} kSupported[] = {
    {CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_16F, CUDA_R_16F, CUDA_R_16F},
    {CUBLAS_COMPUTE_32F, CUDA_R_16F, CUDA_R_16F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F_FAST_TF32, CUDA_R_32F, CUDA_R_32F, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_16F},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E4M3, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_16F},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2, CUDA_R_32F},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E5M2, CUDA_R_8F_E4M3, CUDA_R_16BF},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E5M2, CUDA_R_8F_E4M3, CUDA_R_16F},
    {CUBLAS_COMPUTE_32F, CUDA_R_8F_E5M2, CUDA_R_8F_E4M3, CUDA_R_32F},
};

// Both operands have one scale, or both have scales of their parts, of which not both are blocks. M and N are then
// multiples of 4, and each 128 products are added in fp32 anyway.
bool ScalesFit(const LtMatMul& matmul, const LtLayout& d) {
  constexpr int32_t kOne = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, kTiles = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
                    kBlocks = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  const std::pair modes(matmul.a_scale_mode, matmul.b_scale_mode);
  if (modes == std::pair(kOne, kOne)) return true;
  return (modes == std::pair(kTiles, kTiles) || modes == std::pair(kTiles, kBlocks) ||
          modes == std::pair(kBlocks, kTiles)) &&
         d.rows % 4 == 0 && d.columns % 4 == 0 && matmul.fast_accumulation == 0;
}

// Operands of 8 bits have their K in memory without gaps, and all columns in memory begin at multiples of 16 bytes.
bool Float8FormFits(const LtMatMul& matmul, const LtLayout& a, const LtLayout& b, const LtLayout& d) {
  const bool bias_fits = matmul.epilogue != CUBLASLT_EPILOGUE_BIAS || d.type != CUDA_R_32F;
  return matmul.transpose_a == CUBLAS_OP_T && matmul.transpose_b == CUBLAS_OP_N && a.rows % 16 == 0 &&
         a.columns % 16 == 0 && a.ld % 16 == 0 && b.ld % 16 == 0 &&
         static_cast<uint64_t>(d.ld) * ElementBytes(d) % 16 == 0 && bias_fits && ScalesFit(matmul, d);
}

// Scales of parts need an address even where nothing is read, and only operands of 8 bits have scales.
bool ScalesAreSet(const LtMatMul& matmul, const LtLayout& a) {
  if (!HasFloat8(a)) return matmul.a_scale == nullptr && matmul.b_scale == nullptr;
  constexpr int32_t kOne = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  return (matmul.a_scale_mode == kOne || matmul.a_scale != nullptr) &&
         (matmul.b_scale_mode == kOne || matmul.b_scale != nullptr);
}

bool TypesAreSupported(const LtMatMul& matmul, const LtLayout& a, const LtLayout& b, const LtLayout& c,
                       const LtLayout& d) {
  if (HasFloat8(a) && !Float8FormFits(matmul, a, b, d)) return false;
  return matmul.scale == CUDA_R_32F && c.type == d.type &&
         std::any_of(std::begin(kSupported), std::end(kSupported), [&](const auto& row) {
           return row.compute == matmul.compute && row.a == a.type && row.b == b.type && row.cd == d.type;
         });
}

// Returns whether an alignment that the heuristic is told is one that an operand of this layout can have.
bool IsAlignment(uint32_t bytes, const LtLayout& layout) {
  return bytes >= ElementBytes(layout) && bytes <= 256 && (bytes & (bytes - 1)) == 0;
}

// Returns whether op(A) op(B) has the shape of D.
bool ShapesFit(const LtMatMul& matmul, const LtLayout& a, const LtLayout& b, const LtLayout& d) {
  const bool ta = matmul.transpose_a != CUBLAS_OP_N, tb = matmul.transpose_b != CUBLAS_OP_N;
  return (ta ? a.columns : a.rows) == d.rows && (tb ? b.rows : b.columns) == d.columns &&
         (ta ? a.rows : a.columns) == (tb ? b.columns : b.rows);
}

cublasStatus_t MatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, cublasLtMatrixLayout_t a,
                                      cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                      cublasLtMatmulPreference_t preference, int most,
                                      cublasLtMatmulHeuristicResult_t results[], int* found) {
  RETURN_IF_ORDERED("MatmulAlgoGetHeuristic");
  if (handle != kHandle) return CUBLAS_STATUS_NOT_INITIALIZED;
  const LtQuery query = {*As<LtMatMul>(matmul), *As<LtLayout>(a), *As<LtLayout>(b),
                         *As<LtLayout>(c),      *As<LtLayout>(d), *As<LtPreference>(preference)};
  if (most <= 0) return Misuse("no algorithm is wanted");
  if (!ShapesFit(query.matmul, query.a, query.b, query.d)) return Misuse("shapes of no matmul");
  if (!(query.c == query.d)) return Misuse("C and D differ");
  const LtPreference& told = query.preference;
  if (!IsAlignment(told.align_a, query.a) || !IsAlignment(told.align_b, query.b) ||
      !IsAlignment(told.align_c, query.c) || !IsAlignment(told.align_d, query.d)) {
    return Misuse("an alignment that is no power of two from the size of an element to 256");
  }
  if (query.matmul.epilogue == CUBLASLT_EPILOGUE_BIAS && query.matmul.bias == nullptr) return Misuse("no bias");
  if (!ScalesAreSet(query.matmul, query.a)) return Misuse("scales without an address, or of no fp8 operands");
  library->queries.push_back(query);
  *found = 0;
  if (!TypesAreSupported(query.matmul, query.a, query.b, query.c, query.d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool aligned = std::min({told.align_a, told.align_b, told.align_c, told.align_d}) >= 16;
  if (HasFloat8(query.a) && !aligned) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (library->wanted_workspace_bytes > query.preference.workspace_bytes) return CUBLAS_STATUS_NOT_SUPPORTED;
  for (int i = 0; i < std::min(most, library->algorithms); ++i) {
    results[i] = {};
    results[i].state = i < library->unusable ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
    const int accepted = i - library->unusable - library->refused;  // Its place among those that are not refused.
    const bool oversized = accepted >= 0 && accepted < library->oversized;
    const cuda::MatMulAlgorithm words =
        CublasLtStandIn::Algorithm(i, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
                                   oversized ? query.preference.workspace_bytes + 1 : library->wanted_workspace_bytes);
    std::copy(words.begin(), words.end(), results[i].algo.data);
    results[i].algo.data[kQueryWord] = library->queries.size() - 1;
    if (!library->tiles.empty()) {
      results[i].algo.data[kTileWord] = library->tiles[0];
      results[i].algo.data[kSplitWord] = 1;
      results[i].algo.data[kSchemeWord] = CUBLASLT_REDUCTION_SCHEME_NONE;
    }
    ++*found;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t MatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t matmul, cublasLtMatrixLayout_t a,
                               cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                               const cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulHeuristicResult_t* result) {
  RETURN_IF_ORDERED("MatmulAlgoCheck");
  if (algorithm->data[kMagicWord] != kMagic) return Misuse("words that are no algorithm");
  if (!TypesAreSupported(*As<LtMatMul>(matmul), *As<LtLayout>(a), *As<LtLayout>(b), *As<LtLayout>(c),
                         *As<LtLayout>(d))) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const bool proposed = algorithm->data[kQueryWord] != kNoQuery;
  if (proposed && algorithm->data[kNameWord] < static_cast<uint64_t>(library->unusable + library->refused)) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const std::vector<uint32_t>& tiles = library->tiles;
  if (!tiles.empty() && std::count(tiles.begin(), tiles.end(), algorithm->data[kTileWord]) == 0) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const uint64_t parts = std::max<uint64_t>(1, algorithm->data[kSplitWord]);
  if (parts > static_cast<uint64_t>(library->most_splits)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (parts > 1 && algorithm->data[kSchemeWord] == CUBLASLT_REDUCTION_SCHEME_NONE) return CUBLAS_STATUS_INVALID_VALUE;
  const LtLayout& result_layout = *As<LtLayout>(d);
  const uint64_t of_parts = parts > 1 ? parts * result_layout.rows * result_layout.columns * sizeof(float) : 0;
  result->workspaceSize = algorithm->data[kWorkspaceWord] + of_parts;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t MatmulAlgoCapGetAttribute(const cublasLtMatmulAlgo_t*, cublasLtMatmulAlgoCapAttributes_t attribute,
                                         void* to, size_t size, size_t* written) {
  RETURN_IF_ORDERED("MatmulAlgoCapGetAttribute");
  if (library->tiles.empty()) return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto give = [&](const void* value, size_t bytes) {
    *written = bytes;
    if (size == 0) return CUBLAS_STATUS_SUCCESS;
    if (size != bytes) return Misuse("a capability of another size");
    std::memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  const auto splits = static_cast<int32_t>(library->most_splits > 1);
  const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  switch (attribute) {
    case CUBLASLT_ALGO_CAP_TILE_IDS: return give(library->tiles.data(), library->tiles.size() * sizeof(uint32_t));
    case CUBLASLT_ALGO_CAP_SPLITK_SUPPORT: return give(&splits, sizeof(splits));
    case CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK: return give(&schemes, sizeof(schemes));
    default: return Misuse("a capability that the stand-in does not know");
  }
}

cublasStatus_t MatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algorithm,
                                            cublasLtMatmulAlgoConfigAttributes_t attribute, const void* from,
                                            size_t size) {
  RETURN_IF_ORDERED("MatmulAlgoConfigSetAttribute");
  if (size != sizeof(uint32_t)) return Misuse("an attribute of another size");
  uint32_t value = 0;
  std::memcpy(&value, from, size);
  switch (attribute) {
    case CUBLASLT_ALGO_CONFIG_TILE_ID: algorithm->data[kTileWord] = value; return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM: algorithm->data[kSplitWord] = value; return CUBLAS_STATUS_SUCCESS;
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: algorithm->data[kSchemeWord] = value; return CUBLAS_STATUS_SUCCESS;
    default: return Misuse("an attribute that the stand-in does not know");
  }
}

cublasStatus_t MatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                            cublasLtMatmulAlgoConfigAttributes_t attribute, void* to, size_t size,
                                            size_t* written) {
  RETURN_IF_ORDERED("MatmulAlgoConfigGetAttribute");
  if (size != sizeof(uint32_t)) return Misuse("an attribute of another size");
  uint64_t word = 0;
  switch (attribute) {
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME: word = algorithm->data[kSchemeWord]; break;
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM: word = std::max<uint64_t>(1, algorithm->data[kSplitWord]); break;
    default: return Misuse("an attribute that the stand-in does not know");
  }
  const auto value = static_cast<uint32_t>(word);
  std::memcpy(to, &value, size);
  *written = size;
  return CUBLAS_STATUS_SUCCESS;
}

bool Aligned(const void* data, uint64_t bytes) { return reinterpret_cast<uintptr_t>(data) % bytes == 0; }

// Checks that an algorithm that was chosen for `query` may be used for `call`.
cublasStatus_t CheckAgainst(const LtQuery& query, const LtCall& call) {
  LtMatMul matmul = call.matmul;
  matmul.bias = query.matmul.bias;
  matmul.a_scale = query.matmul.a_scale;
  matmul.b_scale = query.matmul.b_scale;
  if (!(matmul == query.matmul && call.a == query.a && call.b == query.b && call.c == query.c)) {
    return Misuse("the algorithm of another matmul");
  }
  const LtPreference& told = query.preference;
  const uint64_t bias = reinterpret_cast<uintptr_t>(query.matmul.bias);
  if (!Aligned(call.a_data, told.align_a) || !Aligned(call.b_data, told.align_b) ||
      !Aligned(call.c_data, told.align_c) || !Aligned(call.d_data, told.align_d) ||
      (bias != 0 && !Aligned(call.matmul.bias, bias & -bias))) {
    return Misuse("an operand less aligned than the heuristic was told");
  }
  return CUBLAS_STATUS_SUCCESS;
}

// Checks what the library demands of a call.
cublasStatus_t CheckCall(const LtCall& call) {
  if (call.algorithm.data[kMagicWord] != kMagic) return Misuse("words that are no algorithm");
  if (!ShapesFit(call.matmul, call.a, call.b, call.d)) return Misuse("shapes of no matmul");
  if (!TypesAreSupported(call.matmul, call.a, call.b, call.c, call.d)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!Aligned(call.a_data, ElementBytes(call.a)) || !Aligned(call.b_data, ElementBytes(call.b)) ||
      !Aligned(call.c_data, ElementBytes(call.c)) || !Aligned(call.d_data, ElementBytes(call.d)) ||
      (call.matmul.epilogue == CUBLASLT_EPILOGUE_BIAS && !Aligned(call.matmul.bias, ElementBytes(call.d)))) {
    return Misuse("an operand between elements");
  }
  if (call.matmul.epilogue == CUBLASLT_EPILOGUE_BIAS && call.matmul.bias == nullptr) return Misuse("no bias");
  if (!ScalesAreSet(call.matmul, call.a)) return Misuse("scales without an address, or of no fp8 operands");
  if (call.beta != 0 && (call.c_data != call.d_data || !(call.c == call.d))) return Misuse("C is not D");
  if (call.matmul.a_scale_mode != CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F &&
      (!Aligned(call.matmul.a_scale, 16) || !Aligned(call.matmul.b_scale, 16))) {
    return Misuse("scales that are not aligned");
  }
  if (call.workspace_bytes < call.algorithm.data[kWorkspaceWord]) return Misuse("too little workspace");
  if (call.workspace_bytes > 0 && !Aligned(call.workspace, 256)) return Misuse("workspace that is not aligned");
  if (call.algorithm.data[kQueryWord] != kNoQuery) {
    return CheckAgainst(library->queries[call.algorithm.data[kQueryWord]], call);
  }
  return CUBLAS_STATUS_SUCCESS;
}

// Returns a call with the addresses at which the host reads what the GPU would read.
LtCall OnHost(LtCall call) {
  call.a_data = cuda_on_host::HostViewOf(call.a_data);
  call.b_data = cuda_on_host::HostViewOf(call.b_data);
  call.c_data = cuda_on_host::HostViewOf(call.c_data);
  call.d_data = cuda_on_host::HostViewOf(call.d_data);
  call.matmul.bias = cuda_on_host::HostViewOf(call.matmul.bias);
  call.matmul.a_scale = cuda_on_host::HostViewOf(call.matmul.a_scale);
  call.matmul.b_scale = cuda_on_host::HostViewOf(call.matmul.b_scale);
  call.workspace = cuda_on_host::HostViewOf(call.workspace);
  return call;
}

cublasStatus_t Matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t matmul, const void* alpha, const void* a_data,
                      cublasLtMatrixLayout_t a, const void* b_data, cublasLtMatrixLayout_t b, const void* beta,
                      const void* c_data, cublasLtMatrixLayout_t c, void* d_data, cublasLtMatrixLayout_t d,
                      const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t workspace_bytes,
                      cudaStream_t stream) {
  RETURN_IF_ORDERED("Matmul");
  if (handle != kHandle) return CUBLAS_STATUS_NOT_INITIALIZED;
  LtCall call = {.matmul = *As<LtMatMul>(matmul),
                 .a = *As<LtLayout>(a),
                 .b = *As<LtLayout>(b),
                 .c = *As<LtLayout>(c),
                 .d = *As<LtLayout>(d),
                 .a_data = a_data,
                 .b_data = b_data,
                 .c_data = c_data,
                 .d_data = d_data,
                 .alpha = *static_cast<const float*>(alpha),
                 .beta = *static_cast<const float*>(beta),
                 .algorithm = *algorithm,
                 .workspace = workspace,
                 .workspace_bytes = workspace_bytes};
  library->calls.push_back(call);
  if (const cublasStatus_t checked = CheckCall(call); checked != CUBLAS_STATUS_SUCCESS) return checked;
  const bool is_first = library->launched.insert({algorithm->data[kQueryWord], algorithm->data[kNameWord]}).second;
  if (is_first && library->load_module && !library->load_module().ok()) return CUBLAS_STATUS_INTERNAL_ERROR;
  const LtCall seen = OnHost(call);
  auto* host_stream = static_cast<cuda_on_host::Stream*>(static_cast<void*>(stream));
  if (host_stream == nullptr || !host_stream->submit) {
    Compute(seen);
    return CUBLAS_STATUS_SUCCESS;
  }
  const absl::Status status = host_stream->submit([seen] {
    Compute(seen);
    return absl::OkStatus();
  });
  return status.ok() ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

CublasLtStandIn::CublasLtStandIn() {
  SHALE_CHECK(library == nullptr) << "one stand-in at a time";
  library = this;
}

CublasLtStandIn::~CublasLtStandIn() { library = nullptr; }

cuda::MatMulAlgorithm CublasLtStandIn::Algorithm(uint64_t name, uint32_t reduction_scheme, uint64_t workspace_bytes,
                                                 uint64_t splits) {
  cuda::MatMulAlgorithm words = {};
  words[kMagicWord] = kMagic;
  words[kNameWord] = name;
  words[kQueryWord] = kNoQuery;
  words[kSchemeWord] = reduction_scheme;
  words[kWorkspaceWord] = workspace_bytes;
  words[kSplitWord] = splits;
  return words;
}

cuda::CublasLtFunctions CublasLtStandIn::functions() const {
  return {.GetVersion = GetVersion,
          .GetStatusName = GetStatusName,
          .Create = Create,
          .Destroy = Destroy,
          .MatrixLayoutCreate = MatrixLayoutCreate,
          .MatrixLayoutDestroy = Drop<LtLayout, cublasLtMatrixLayoutOpaque_t>,
          .MatmulDescCreate = MatmulDescCreate,
          .MatmulDescDestroy = Drop<LtMatMul, cublasLtMatmulDescOpaque_t>,
          .MatmulDescSetAttribute = MatmulDescSetAttribute,
          .MatmulPreferenceCreate = MatmulPreferenceCreate,
          .MatmulPreferenceDestroy = Drop<LtPreference, cublasLtMatmulPreferenceOpaque_t>,
          .MatmulPreferenceSetAttribute = MatmulPreferenceSetAttribute,
          .MatmulAlgoGetHeuristic = MatmulAlgoGetHeuristic,
          .MatmulAlgoCheck = MatmulAlgoCheck,
          .MatmulAlgoCapGetAttribute = MatmulAlgoCapGetAttribute,
          .MatmulAlgoConfigGetAttribute = MatmulAlgoConfigGetAttribute,
          .MatmulAlgoConfigSetAttribute = MatmulAlgoConfigSetAttribute,
          .Matmul = Matmul};
}

}  // namespace shale::testing
