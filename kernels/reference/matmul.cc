#include "kernels/reference/element.h"
#include "kernels/reference/reference_kernels.h"

namespace shale::reference {

absl::Status Reference(const MatMul& op) {
  const int64_t a_row = op.transpose_a ? 1 : op.a.stride(0), a_column = op.transpose_a ? op.a.stride(0) : 1;
  const int64_t b_row = op.transpose_b ? 1 : op.b.stride(0), b_column = op.transpose_b ? op.b.stride(0) : 1;
  for (int64_t m = 0; m < op.m(); ++m) {
    for (int64_t n = 0; n < op.n(); ++n) {
      double total = op.bias_N.present() ? Get(op.bias_N, n) : 0;
      for (int64_t k = 0; k < op.k(); ++k) {
        total += Get(op.a, m * a_row + k * a_column) * Get(op.b, k * b_row + n * b_column);
      }
      PutGradient(op.c_MN, m * op.c_MN.stride(0) + n, total, op.accumulate);
    }
  }
  return absl::OkStatus();
}

}  // namespace shale::reference
