// Functions that read and write elements of floating-point tensors as fp64, and round them. All kernels of the
// reference use them.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/counter_random.h"
#include "kernels/float8.h"
#include "kernels/tensor.h"

namespace shale::reference {

// Returns the element `offset` elements from the start of `t`. REQUIRES: t is f32, bf16, f16, f64 or fp8.
inline double Get(const Tensor& t, int64_t offset) {
  switch (t.dtype) {
    case DType::kFloat32: return t.as<const float>()[offset];
    case DType::kBFloat16: return ToFloat(t.as<const BFloat16>()[offset]);
    case DType::kFloat16: return ToFloat(t.as<const Float16>()[offset]);
    case DType::kFloat64: return t.as<const double>()[offset];
    case DType::kFloat8E4M3: return ToFloat(t.as<const Float8E4M3>()[offset]);
    case DType::kFloat8E5M2: return ToFloat(t.as<const Float8E5M2>()[offset]);
    default: SHALE_CHECK(false) << "not a floating tensor: " << t.ToString();
  }
  return 0;
}

// Stores `value` rounded to t's dtype, and returns the rounded value: ops that use it again must use what was stored.
// fp8 saturates. REQUIRES: as for Get
inline double Put(const Tensor& t, int64_t offset, double value) {
  switch (t.dtype) {
    case DType::kFloat32: t.as<float>()[offset] = static_cast<float>(value); break;
    case DType::kBFloat16: t.as<BFloat16>()[offset] = RoundToBFloat16(static_cast<float>(value)); break;
    case DType::kFloat16: t.as<Float16>()[offset] = RoundToFloat16(static_cast<float>(value)); break;
    case DType::kFloat64: t.as<double>()[offset] = value; break;
    case DType::kFloat8E4M3: t.as<Float8E4M3>()[offset] = SaturateToFloat8E4M3(static_cast<float>(value)); break;
    case DType::kFloat8E5M2: t.as<Float8E5M2>()[offset] = SaturateToFloat8E5M2(static_cast<float>(value)); break;
    default: SHALE_CHECK(false) << "not a floating tensor: " << t.ToString();
  }
  return Get(t, offset);
}

// Stores `value`, or adds it to the element if `accumulate` is set. Returns the result as Put does.
inline double PutGradient(const Tensor& t, int64_t offset, double value, bool accumulate) {
  return Put(t, offset, accumulate ? Get(t, offset) + value : value);
}

// Returns the bf16 number to which `value`, element `element` of a flat group, is rounded stochastically.
inline BFloat16 RoundElement(const RoundingStream& stream, int64_t element, float value) {
  const uint32_t half = stream.At(element / kRandomBlock).Half(element % kRandomBlock);
  return {RoundStochastically(std::bit_cast<uint32_t>(value), half)};
}

// Returns the offset of the first element of row `row` of [R, C], [T, H, D] or [B, S, H, D]. Rows are numbered over all
// dimensions but the last.
inline int64_t RowOffset(const Tensor& t, int64_t row) {
  int64_t offset = 0;
  for (int i = t.rank - 2; i >= 0; --i) {
    offset += row % t.shape[i] * t.strides[i];
    row /= t.shape[i];
  }
  return offset;
}

// Returns the number of rows, counted as in RowOffset.
inline int64_t RowCount(const Tensor& t) {
  int64_t rows = 1;
  for (int i = 0; i < t.rank - 1; ++i) rows *= t.shape[i];
  return rows;
}

}  // namespace shale::reference
