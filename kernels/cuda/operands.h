// From the tensors of an op to what a kernel takes. Include after portable.h.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/portable.h"
#include "kernels/tensor.h"

namespace shale::cuda {

template <class T>
Global<T> Whole(const Tensor& t, const char* name) {
  return Global<T>(t.as<T>(), t.extent(), name);
}

// The rows of a [T, C] or [T, H, D] operand whose outer dimensions may be strided; row t * H + h.
template <class T>
struct Rows {
  Global<T> at;
  int64_t inner, outer_stride, inner_stride;

  Rows(const Tensor& t, const char* name)
      : at(Whole<T>(t, name)),
        inner(t.rank == 3 ? t.shape[1] : 1),
        outer_stride(t.strides[0]),
        inner_stride(t.rank == 3 ? t.strides[1] : 0) {}

  SHALE_DEVICE int64_t Begin(int64_t row) const { return row / inner * outer_stride + row % inner * inner_stride; }
};

// Whether every row of `t` begins at a multiple of 16 bytes. An absent operand does not stand in the way.
inline bool RowsAligned(const Tensor& t) {
  if (!t.present()) return true;
  const int64_t pack = 16 / SizeOf(t.dtype);
  bool aligned = reinterpret_cast<uintptr_t>(t.data) % 16 == 0;
  // The stride of a dimension of one element is never used.
  for (int i = 0; i < t.rank - 1; ++i) aligned = aligned && (t.shape[i] == 1 || t.strides[i] % pack == 0);
  return aligned;
}

// Calls run(T()) with the type of an act tensor's elements: float or BFloat16.
template <class Run>
absl::Status WithElement(DType act, const Run& run) {
  return act == DType::kFloat32 ? run(float()) : run(BFloat16());
}

}  // namespace shale::cuda
