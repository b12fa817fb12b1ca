// The shape and the operands of a matmul, as those see them that compute it. Private to kernels/cpu.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/float8_scales.h"
#include "kernels/op_backend.h"
#include "kernels/tensor.h"

namespace shale::cpu {

// The shape of a matmul, without addresses: c = scale a b + bias, or c += scale a b, for strided a [M, K], b [K, N] and
// c [M, N]. Strides are in elements; one of a's strides and one of b's strides is 1.
struct MatMulShape {
  int64_t m = 0, n = 0, k = 0;
  int64_t a_stride_m = 0, a_stride_k = 0;
  int64_t b_stride_k = 0, b_stride_n = 0;
  int64_t c_stride_m = 0;
  DType dtype = DType::kFloat32;    // Of a, b and bias, unless a and b are fp8: f32, bf16 or f16.
  DType c_dtype = DType::kFloat32;  // f32, bf16 or f16.
  // Matrices in fp8: their dtypes, in place of `dtype`. Both are set, or neither is.
  std::optional<DType> a_float8, b_float8;
  Float8Scales scales = Float8Scales::kOne;  // Of these (MatMul::scales).
  bool bias = false;
  bool accumulate = false;
  float scale = 1;  // Finite; 1 if there is a bias, or if a and b are fp8.
  DType a_dtype() const { return a_float8.value_or(dtype); }
  DType b_dtype() const { return b_float8.value_or(dtype); }
  auto operator<=>(const MatMulShape&) const = default;
};

struct MatMulOperands {
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;  // If the shape has one.
  void* c = nullptr;
  const float* scale_a = nullptr;  // The scales of a and b, if these are fp8.
  const float* scale_b = nullptr;
  Scratch packed_b;          // Memory for packed b, of PackedBytes; null: b is packed in scratch.
  bool b_is_packed = false;  // packed_b holds b already.
  Scratch scratch;           // At least ScratchBytes.
};

}  // namespace shale::cpu
