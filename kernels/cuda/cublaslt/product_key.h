// ProductKey: all that decides which algorithm of cuBLASLt computes a product, and so its bits.
//
// cuBLASLt stores matrices by columns, we by rows, and the one is the other transposed: it is asked for
// c^T [N, M] = op(b)^T op(a)^T, so that its A is our b, its B our a, and its rows are our columns.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/ops.h"

namespace shale::cuda {

struct ProductKey {
  DType ab = DType::kFloat32, c = DType::kFloat32;
  bool transpose_a = false, transpose_b = false;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0;  // Elements between the starts of rows in memory.
  // Bytes that the operand's first element is known to be aligned to: a power of two up to kMaxAlignment. The library
  // would take kMaxAlignment for granted.
  int64_t align_a = 0, align_b = 0, align_c = 0, align_bias = 0;  // Of the bias 0 when the product has none to add.
  bool bias = false;                                              // Added by the product (the library's epilogue).
  bool accumulate = false;                                        // Onto what c holds.
  bool tf32 = false;                                              // f32 operands may be rounded to 10 bits of fraction.

  static constexpr int64_t kMaxAlignment = 256;

  // Of `op`, bound or symbolic: buffers begin at multiples of 256 bytes. A bias that is not of c's dtype, which the
  // library does not take, is in c before the product is added to it: no bias, but accumulate.
  static ProductKey Of(const MatMul& op, bool allow_tf32);
  static bool AddsBias(const MatMul& op) { return op.bias_N.present() && op.bias_N.dtype == op.c_MN.dtype; }

  // "ab=bf16 c=f32 ta=0 tb=1 m=4096 ...", every field in its order. Parse takes exactly what ToString gives.
  std::string ToString() const;
  static absl::StatusOr<ProductKey> Parse(absl::string_view text);

  friend auto operator<=>(const ProductKey&, const ProductKey&) = default;
};

}  // namespace shale::cuda
