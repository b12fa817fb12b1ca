// Ops that make fp8 operands of matmuls (MatMul). kernels/ops.h says what holds for all ops.
//
// R rows, C columns of a matrix
#pragma once

#include "absl/strings/string_view.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shale {

// maximum = the largest |x|. If an x is not a number, neither is the maximum. No sum is involved, so its bits are the
// same on every device.
struct AbsMax {
  static constexpr absl::string_view kName = "AbsMax";
  Tensor x_RC;       // act, rows may be strided
  Tensor maximum_1;  // f32
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_RC, Access::kRead);
    v("maximum", op.maximum_1, Access::kWrite);
  }
};

// out = x * factor in fp32, rounded to its format; what is beyond the format becomes its largest value. `transposed`
// gets the same numbers in columns. scale = 1 / factor. kernels/float8.h has the formats, and the formula of the factor
// ([Note: scales of fp8]). The bits are the same on every device, except those of NaNs.
struct QuantizeFloat8 {
  static constexpr absl::string_view kName = "QuantizeFloat8";
  Tensor x_RC;           // act, rows may be strided
  Tensor maximum_1;      // f32, of AbsMax
  Tensor out_RC;         // f8e4m3 or f8e5m2; optional
  Tensor transposed_CR;  // of the dtype of out; optional, but one of the two is given
  Tensor scale_1;        // f32
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_RC, Access::kRead);
    v("maximum", op.maximum_1, Access::kRead);
    v("out", op.out_RC, Access::kWrite);
    v("transposed", op.transposed_CR, Access::kWrite);
    v("scale", op.scale_1, Access::kWrite);
  }
};

}  // namespace shale
