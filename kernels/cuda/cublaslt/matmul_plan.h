// MatMulPlan: the descriptors of cuBLASLt for one kind of matmul, and the algorithm that computes it.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cublaslt/functions.h"
#include "kernels/cuda/cublaslt/matmul_key.h"
#include "kernels/cuda/cublaslt/tuning_table.h"
#include "kernels/device/cuda/handles.h"
#include "kernels/op_backend.h"

namespace shale::cuda {

// Only one thread at a time may use a plan. Errors name the call, the library's status and the key.
//
// Algorithms that split K must add its parts in fp32 (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE). Those that add in c's
// type, in place or not, would round to bf16 between the parts.
//
// [Note: lost tails] Kernels of cuBLASLt read K in blocks of 128 bytes of an operand's row. Some that split K give each
// part as many whole blocks, if these can be divided so, and then no part has the elements that are left over: the
// product is of fewer elements, and no call fails. That is so where the elements left over are fewer than the parts.
// Others have measured it on an H100 with 12.8.5 and 13.1.1, and on GPUs of Blackwell up to 13.2.2 (part of every
// thousandth shape; bitequiv in facebookexperimental/triton). So such algorithms are not used.
class MatMulPlan {
 public:
  // Borrows `functions` and `handle`, which must outlive the MatMulPlan.
  static absl::StatusOr<std::unique_ptr<MatMulPlan>> Create(const CublasLtFunctions& functions, cublasLtHandle_t handle,
                                                            const MatMulKey& key, int64_t workspace_bytes);

  // Returns up to `most` algorithms that need at most workspace_bytes, the fastest by the library's estimate first.
  // Returns Unimplemented if there is none.
  absl::StatusOr<std::vector<MatMulAlgorithm>> Candidates(int most) const;

  // Returns up to `most` algorithms, besides those in `proposals`, that Use accepts and that differ from one of them in
  // nothing but tile and in how many parts K is split into: each tile that the library has for it, with each split that
  // leaves a part at least 256 long. What splits K least comes first. The library's check is what decides which of them
  // fit the matmul; it may leave none.
  std::vector<MatMulAlgorithm> Variants(const std::vector<MatMulAlgorithm>& proposals, int most) const;

  // Makes Enqueue use `algorithm`. Returns an error if it does not fit the matmul, this GPU, the workspace or the rules
  // above.
  absl::Status Use(const MatMulAlgorithm& algorithm);

  // Makes Enqueue use the first of `algorithms` that Use accepts. If Use accepts none, returns an error that names what
  // is wrong with each, with the code of the first. REQUIRES: `algorithms` is not empty.
  absl::Status UseFirstOf(const std::vector<MatMulAlgorithm>& algorithms);

  // Enqueues a bound op that has this key. If the key says accumulate, adds to c. REQUIRES: Use or UseFirstOf returned
  // OK, and `scratch` has workspace_bytes.
  absl::Status Enqueue(const MatMul& op, Scratch scratch, StreamHandle stream);

 private:
  // Owns one of the library's descriptors. The deleter is the library's destroy function.
  template <class Opaque>
  using Owned = std::unique_ptr<Opaque, cublasStatus_t (*)(Opaque*)>;

  MatMulPlan(const CublasLtFunctions& functions, cublasLtHandle_t handle, const MatMulKey& key,
             int64_t workspace_bytes);
  absl::Status Describe();
  absl::Status CreateLayout(DType dtype, int64_t rows, int64_t columns, int64_t ld,
                            Owned<cublasLtMatrixLayoutOpaque_t>& layout) const;
  template <class Value>
  absl::Status Set(cublasLtMatmulDescAttributes_t attribute, Value value);
  // Sets the addresses of the scales of the op's fp8 operands.
  absl::Status SetScales(const void* of_a, const void* of_b);
  // Returns an error if `algorithm` cannot be used. Its message does not name the key.
  absl::Status Check(const cublasLtMatmulAlgo_t& algorithm) const;
  // Returns the error with the key in its message.
  absl::Status WithKey(const absl::Status& error) const;
  absl::Status StatusOf(const char* call, cublasStatus_t status) const;

  const CublasLtFunctions& functions_;
  const cublasLtHandle_t handle_;
  const MatMulKey key_;
  const int64_t workspace_bytes_;
  Owned<cublasLtMatmulDescOpaque_t> matmul_;
  Owned<cublasLtMatrixLayoutOpaque_t> a_, b_, c_;  // Layouts of the op's a, b and c. The library's A is the op's b.
  cublasLtMatmulAlgo_t algorithm_ = {};
};

}  // namespace shale::cuda
