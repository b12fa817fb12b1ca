#include "tests/kernels/cuda/cublaslt/cublaslt_arithmetic.h"

#include <cstring>

#include "kernels/dtype.h"
#include "kernels/float8.h"

namespace shale::testing {
namespace {

// Returns element (row, column) of a matrix stored by columns.
double Get(const LtLayout& layout, const void* data, uint64_t row, uint64_t column) {
  const uint64_t at = row + column * static_cast<uint64_t>(layout.ld);
  if (HasFloat8(layout)) {
    const uint8_t code = static_cast<const uint8_t*>(data)[at];
    return layout.type == CUDA_R_8F_E4M3 ? ToFloat(Float8E4M3{code}) : ToFloat(Float8E5M2{code});
  }
  if (layout.type == CUDA_R_16F) return ToFloat(static_cast<const Float16*>(data)[at]);
  return layout.type == CUDA_R_16BF ? ToFloat(static_cast<const BFloat16*>(data)[at])
                                    : static_cast<const float*>(data)[at];
}

void Put(const LtLayout& layout, void* data, uint64_t row, uint64_t column, double value) {
  const uint64_t at = row + column * static_cast<uint64_t>(layout.ld);
  if (layout.type == CUDA_R_16BF) {
    static_cast<BFloat16*>(data)[at] = RoundToBFloat16(static_cast<float>(value));
  } else if (layout.type == CUDA_R_16F) {
    static_cast<Float16*>(data)[at] = RoundToFloat16(static_cast<float>(value));
  } else {
    static_cast<float*>(data)[at] = static_cast<float>(value);
  }
}

// Returns the scale of an element of an operand of `rows` x `depth` elements, by the layouts of NVIDIA's reference.
double ScaleOf(const void* scales, int32_t mode, uint64_t rows, uint64_t depth, uint64_t row, uint64_t k) {
  if (scales == nullptr) return 1;
  const uint64_t padded = ((depth + 127) / 128 + 3) / 4 * 4;
  const uint64_t place = mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F       ? row + k / 128 * rows
                         : mode == CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F ? k / 128 + row / 128 * padded
                                                                               : 0;
  return static_cast<const float*>(scales)[place];
}

}  // namespace

bool HasFloat8(const LtLayout& layout) { return layout.type == CUDA_R_8F_E4M3 || layout.type == CUDA_R_8F_E5M2; }

uint64_t ElementBytes(const LtLayout& layout) {
  if (HasFloat8(layout)) return 1;
  return layout.type == CUDA_R_16BF || layout.type == CUDA_R_16F ? 2 : 4;
}

void Compute(const LtCall& call) {
  const LtMatMul& m = call.matmul;
  const bool ta = m.transpose_a != CUBLAS_OP_N, tb = m.transpose_b != CUBLAS_OP_N;
  const auto rows = static_cast<int64_t>(call.d.rows);
  const uint64_t depth = ta ? call.a.rows : call.a.columns;
  const LtLayout bias = {.type = call.d.type, .rows = call.d.rows, .columns = 1, .ld = rows};
  // An algorithm may use all that it is given, whatever it said that it needs.
  std::memset(call.workspace, 0xAB, call.workspace_bytes);
  for (uint64_t column = 0; column < call.d.columns; ++column) {
    for (uint64_t row = 0; row < call.d.rows; ++row) {
      double sum = 0;
      for (uint64_t k = 0; k < depth; ++k) {
        sum += (ta ? Get(call.a, call.a_data, k, row) : Get(call.a, call.a_data, row, k)) *
               ScaleOf(m.a_scale, m.a_scale_mode, call.d.rows, depth, row, k) *
               (tb ? Get(call.b, call.b_data, column, k) : Get(call.b, call.b_data, k, column)) *
               ScaleOf(m.b_scale, m.b_scale_mode, call.d.columns, depth, column, k);
      }
      double value = call.alpha * sum;
      if (call.beta != 0) value += call.beta * Get(call.c, call.c_data, row, column);
      if (call.matmul.epilogue == CUBLASLT_EPILOGUE_BIAS) value += Get(bias, call.matmul.bias, row, 0);
      Put(call.d, call.d_data, row, column, value);
    }
  }
}

}  // namespace shale::testing
