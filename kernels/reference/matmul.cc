#include "kernels/ops/matmul.h"

#include <cstdint>
#include <vector>

#include "kernels/reference/element.h"
#include "kernels/reference/reference_kernels.h"

namespace shale::reference {

absl::Status Reference(const MatMul& op) {
  const int64_t M = op.m(), N = op.n(), K = op.k();
  const int64_t a_row = op.transpose_a ? 1 : op.a.stride(0), a_column = op.transpose_a ? op.a.stride(0) : 1;
  const int64_t b_row = op.transpose_b ? 1 : op.b.stride(0), b_column = op.transpose_b ? op.b.stride(0) : 1;
  const Float8ScaleMatrix scales_of_a = op.scales_of_a(), scales_of_b = op.scales_of_b();
  // b is widened only once, because tests spend most of their time here.
  std::vector<double> b_KN(K * N);
  for (int64_t k = 0; k < K; ++k) {
    for (int64_t n = 0; n < N; ++n) {
      b_KN[k * N + n] = Get(op.b, k * b_row + n * b_column);
      if (op.is_float8()) b_KN[k * N + n] *= Get(op.scale_b, scales_of_b.PlaceOf(n, k));
    }
  }
  std::vector<double> totals_N(N);
  for (int64_t m = 0; m < M; ++m) {
    for (int64_t n = 0; n < N; ++n) totals_N[n] = op.bias_N.present() ? Get(op.bias_N, n) : 0;
    for (int64_t k = 0; k < K; ++k) {
      double a = op.scale * Get(op.a, m * a_row + k * a_column);
      if (op.is_float8()) a *= Get(op.scale_a, scales_of_a.PlaceOf(m, k));
      const double* b_N = &b_KN[k * N];
      for (int64_t n = 0; n < N; ++n) totals_N[n] += a * b_N[n];
    }
    for (int64_t n = 0; n < N; ++n) PutGradient(op.c_MN, m * op.c_MN.stride(0) + n, totals_N[n], op.accumulate);
  }
  return absl::OkStatus();
}

}  // namespace shale::reference
