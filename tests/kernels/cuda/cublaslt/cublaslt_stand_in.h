// A stand-in for cuBLASLt that needs no GPU. Records its calls, refuses what the library would refuse by its documents
// (and what it would answer with wrong numbers), overwrites all workspace that it is given, and computes matmuls in
// plain loops, by columns, from the descriptors alone.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/cublaslt/functions.h"
#include "kernels/cuda/cublaslt/tuning_table.h"

namespace shale::testing {

struct LtLayout {
  cudaDataType_t type = CUDA_R_32F;
  uint64_t rows = 0, columns = 0;
  int64_t ld = 0;
  bool operator==(const LtLayout&) const = default;
};

struct LtMatMul {
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cudaDataType_t scale = CUDA_R_32F;
  int32_t transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int8_t fast_accumulation = 0;
  const void *a_scale = nullptr, *b_scale = nullptr;  // Of operands of 8 bits. Null: 1.
  int32_t a_scale_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, b_scale_mode = a_scale_mode;
  bool operator==(const LtMatMul&) const = default;
};

struct LtPreference {
  uint64_t workspace_bytes = 0;
  uint32_t reduction_schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
  uint32_t align_a = 256, align_b = 256, align_c = 256, align_d = 256;
};

// One call of cublasLtMatmulAlgoGetHeuristic.
struct LtQuery {
  LtMatMul matmul;
  LtLayout a, b, c, d;
  LtPreference preference;
};

// One call of cublasLtMatmul.
struct LtCall {
  LtMatMul matmul;
  LtLayout a, b, c, d;
  const void *a_data = nullptr, *b_data = nullptr, *c_data = nullptr;
  void* d_data = nullptr;
  float alpha = 0, beta = 0;
  cublasLtMatmulAlgo_t algorithm = {};
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

// At most one may exist at a time, because the library is global. A matmul runs on the stream of the stand-in runtime
// on which it is enqueued. Without a stream it runs at once, on plain memory.
class CublasLtStandIn {
 public:
  static constexpr int64_t kVersion = 130100;

  CublasLtStandIn();
  ~CublasLtStandIn();
  CublasLtStandIn(const CublasLtStandIn&) = delete;
  CublasLtStandIn& operator=(const CublasLtStandIn&) = delete;

  cuda::CublasLtFunctions functions() const;
  // Returns an algorithm that fits every matmul and that no heuristic proposes.
  static cuda::MatMulAlgorithm Algorithm(uint64_t name, uint32_t reduction_scheme = CUBLASLT_REDUCTION_SCHEME_NONE,
                                         uint64_t workspace_bytes = 0, uint64_t splits = 0);

  std::vector<LtQuery> queries;  // The heuristics that were asked for.
  std::vector<LtCall> calls;
  std::string misuse;                                // Why a call last returned INVALID_VALUE.
  int alive = 0;                                     // How many handles and descriptors exist.
  std::set<std::pair<uint64_t, uint64_t>> launched;  // Algorithms so far, by query and name.

  // Set by tests: the name, without cublasLt, of the function that fails with `failure`.
  std::string failing;
  cublasStatus_t failure = CUBLAS_STATUS_EXECUTION_FAILED;
  // Set by tests: how many algorithms a heuristic returns. It marks the first `unusable` of them as unable to run.
  // MatmulAlgoCheck refuses the next `refused`, and the next `oversized` after those need more than the workspace.
  int algorithms = 2, unusable = 0, refused = 0, oversized = 0;
  uint64_t wanted_workspace_bytes = 512;
  // Set by tests: the tiles of every algorithm, of which a proposal has the first, and into how many parts of K one can
  // be split. Parts are added in fp32, in workspace. Without tiles, the stand-in tells nothing of them.
  std::vector<uint32_t> tiles;
  int32_t most_splits = 1;
  std::function<absl::Status()> load_module;  // Called when an algorithm is first launched. May be empty.
};

}  // namespace shale::testing
