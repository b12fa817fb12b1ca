// The kernels of PackedMatMul, which run on one thread: copying operands into strips, and multiplying strips. Private
// to kernels/cpu.
//
// A strip holds StripSizes().rows rows of operand a, or StripSizes().columns columns of operand b, as f32: element
// [k][r] of a strip is row (column) r at k. Rows beyond the end of the operand are zeros.
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace shale::cpu {

// The rows of a and the columns of b in a strip. They depend on the instruction set. A pair of strips is multiplied
// with all sums in registers.
struct StripSizes {
  int64_t rows = 0, columns = 0;
};
StripSizes StripSizesOfTarget();

// Elements of an operand: `r` counts rows of a, or columns of b. One of the strides, in elements, is 1.
struct StripSource {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;  // f32, or bf16, f16 or fp8, which are widened.
  int64_t stride_r = 0, stride_k = 0;

  StripSource At(int64_t r, int64_t k) const {
    StripSource at = *this;
    at.data = static_cast<const std::byte*>(data) + (r * stride_r + k * stride_k) * SizeOf(dtype);
    return at;
  }
};

// Copies elements [0, r) x [0, k) into strips of a, or of b. Strip i begins at to + i * strip_stride.
void PackRowStrips(const StripSource& a, int64_t r, int64_t k, float* to, int64_t strip_stride);
void PackColumnStrips(const StripSource& b, int64_t r, int64_t k, float* to, int64_t strip_stride);

// c [rows, columns] = a b + before + bias, rounded to c's dtype once. Sums over k in ascending order.
struct StripMatMul {
  int64_t rows = 0, columns = 0, k = 0;
  const float* a = nullptr;  // Strips, one after another.
  const float* b = nullptr;  // Strips.
  int64_t b_strip_stride = 0;
  const float* before = nullptr;  // [rows, columns], or null. May be c.
  int64_t before_stride = 0;
  const void* bias = nullptr;  // [columns] of bias_dtype, or null.
  DType bias_dtype = DType::kFloat32;
  void* c = nullptr;
  DType c_dtype = DType::kFloat32;
  int64_t c_stride = 0;
};
void MultiplyStrips(const StripMatMul& matmul);

}  // namespace shale::cpu
