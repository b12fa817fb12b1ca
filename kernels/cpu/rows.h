// The rows of a [T, C] or [T, H, D] operand whose outer dimensions may be strided.
#pragma once

#include "kernels/tensor.h"

namespace shale::cpu {

template <class T>
class Rows {
 public:
  explicit Rows(const Tensor& t)
      : data_(t.as<T>()),
        inner_(t.rank == 3 ? t.shape[1] : 1),
        outer_stride_(t.strides[0]),
        inner_stride_(t.rank == 3 ? t.strides[1] : 0) {}

  // Returns row t * H + h, or null if the operand is absent.
  T* operator[](int64_t row) const {
    if (data_ == nullptr) return nullptr;
    return data_ + row / inner_ * outer_stride_ + row % inner_ * inner_stride_;
  }

 private:
  T* data_;
  int64_t inner_;
  int64_t outer_stride_;
  int64_t inner_stride_;
};

inline int64_t RowCount(const Tensor& t) { return t.rank == 3 ? t.shape[0] * t.shape[1] : t.shape[0]; }

}  // namespace shale::cpu
