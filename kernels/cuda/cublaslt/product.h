// Product: one kind of product as cuBLASLt sees it: descriptors, and the algorithms that may compute it.
#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/cublaslt/functions.h"
#include "kernels/cuda/cublaslt/product_key.h"
#include "kernels/cuda/cublaslt/tuning_table.h"
#include "kernels/device/cuda/handles.h"
#include "kernels/op_backend.h"

namespace shale::cuda {

// From one thread at a time. Errors name the call, the library's status and the key.
//
// Algorithms that split K add its parts in fp32 (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE): those that add in c's type,
// in place or not, would round to bf16 between the parts.
class Product {
 public:
  // Borrows `functions` and `handle`.
  static absl::StatusOr<std::unique_ptr<Product>> Create(const CublasLtFunctions& functions, cublasLtHandle_t handle,
                                                         const ProductKey& key, int64_t workspace_bytes);

  // Up to `most` algorithms that need no more workspace, those first that the library believes to be fastest.
  // Unimplemented when there is none.
  absl::StatusOr<std::vector<ProductAlgorithm>> Candidates(int most) const;

  // Makes `algorithm` the one that Enqueue uses. Refuses one that does not fit the product, this GPU, the workspace or
  // the rule above.
  absl::Status Use(const ProductAlgorithm& algorithm);

  // `op` is one of the key, bound; `scratch` has workspace_bytes. What c holds is added to when the key accumulates.
  // REQUIRES: Use.
  absl::Status Enqueue(const MatMul& op, Scratch scratch, StreamHandle stream);

 private:
  // Owns one of the library's descriptors; `destroy` is the library's.
  template <class Opaque>
  using Owned = std::unique_ptr<Opaque, cublasStatus_t (*)(Opaque*)>;

  Product(const CublasLtFunctions& functions, cublasLtHandle_t handle, const ProductKey& key, int64_t workspace_bytes);
  absl::Status Describe();
  absl::Status CreateLayout(DType dtype, int64_t rows, int64_t columns, int64_t ld,
                            Owned<cublasLtMatrixLayoutOpaque_t>& layout) const;
  template <class Value>
  absl::Status Set(cublasLtMatmulDescAttributes_t attribute, Value value);
  absl::Status StatusOf(const char* call, cublasStatus_t status) const;

  const CublasLtFunctions& functions_;
  const cublasLtHandle_t handle_;
  const ProductKey key_;
  const int64_t workspace_bytes_;
  Owned<cublasLtMatmulDescOpaque_t> product_;
  Owned<cublasLtMatrixLayoutOpaque_t> a_, b_, c_;  // Of our a, b and c; the library's A is our b.
  cublasLtMatmulAlgo_t algorithm_ = {};
};

}  // namespace shale::cuda
