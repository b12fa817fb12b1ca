// RMS norm and layer norm. kernels/ops.h says what holds for all ops.
//
// T tokens, H heads, D head width, C width of a row (D, if a row is a head), R rows.
#pragma once

#include "absl/strings/string_view.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shale {

// sum = x + residual, or x itself without a residual. y = sum / rms(sum) * (weight_offset + weight) and rstd =
// 1 / rms(sum), per row, where rms(s) = sqrt(mean(s^2) + epsilon) (Zhang and Sennrich, 2019). x and y are [T, C] or
// [T, H, D], and their outer dimensions may be strided; row t*H + h of [T, H, D] is (t, h). y may be x itself. y and
// weight are both absent if other ops compute y themselves ([Note: sources of fp8] in float8.h).
struct RmsNormForward {
  static constexpr absl::string_view kName = "RmsNormForward";
  Tensor x;         // act
  Tensor residual;  // act, optional, same shape as x
  Tensor weight_C;  // act, optional
  Tensor sum;       // act; present if and only if residual is
  Tensor y;         // act; present if and only if weight is
  Tensor rstd_R;    // f32
  float epsilon = 0;
  float weight_offset = 0;  // 1 if the weight is that of Gemma, which is 0 at the start; else 0.
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x, Access::kRead);
    v("residual", op.residual, Access::kRead);
    v("weight", op.weight_C, Access::kRead);
    v("sum", op.sum, Access::kWrite);
    v("y", op.y, Access::kWrite);
    v("rstd", op.rstd_R, Access::kWrite);
  }
};

// d_x = d_residual + the gradient of y = norm(x) with respect to x; d_weight (+)= sum over rows of d_y x rstd. x is the
// tensor that the forward op normalized: its `sum`, or its x without a residual. d_y, x, d_residual and d_x have the
// shape of that tensor, and their outer dimensions may be strided. d_x may be d_y or d_residual itself. d_weight is
// absent if nobody wants it, because the weight is frozen.
struct RmsNormBackward {
  static constexpr absl::string_view kName = "RmsNormBackward";
  Tensor d_y;         // act
  Tensor x;           // act
  Tensor weight_C;    // act
  Tensor rstd_R;      // f32
  Tensor d_residual;  // act, optional
  Tensor d_x;         // act
  Tensor d_weight_C;  // f32, optional
  bool accumulate = false;
  float weight_offset = 0;  // As in the forward op.
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("d_y", op.d_y, Access::kRead);
    v("x", op.x, Access::kRead);
    v("weight", op.weight_C, Access::kRead);
    v("rstd", op.rstd_R, Access::kRead);
    v("d_residual", op.d_residual, Access::kRead);
    v("d_x", op.d_x, Access::kWrite);
    v("d_weight", op.d_weight_C, op.accumulate ? Access::kReadWrite : Access::kWrite);
  }
};

// Like RmsNormForward, with y = (sum - mean) * rstd * weight + bias and rstd = 1 / sqrt(variance + epsilon), where the
// variance is biased: the sum of squares is divided by C (Ba et al., 2016). If y is absent, so are weight and bias.
struct LayerNormForward {
  static constexpr absl::string_view kName = "LayerNormForward";
  Tensor x, residual, weight_C, bias_C, sum, y;  // act
  Tensor mean_R, rstd_R;                         // f32
  float epsilon = 0;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x, Access::kRead);
    v("residual", op.residual, Access::kRead);
    v("weight", op.weight_C, Access::kRead);
    v("bias", op.bias_C, Access::kRead);
    v("sum", op.sum, Access::kWrite);
    v("y", op.y, Access::kWrite);
    v("mean", op.mean_R, Access::kWrite);
    v("rstd", op.rstd_R, Access::kWrite);
  }
};

// Like RmsNormBackward; d_weight (+)= sum over rows of d_y (x - mean) rstd, d_bias (+)= sum over rows of d_y. Either of
// the two may be absent.
struct LayerNormBackward {
  static constexpr absl::string_view kName = "LayerNormBackward";
  Tensor d_y, x, weight_C;      // act
  Tensor mean_R, rstd_R;        // f32
  Tensor d_residual;            // act, optional
  Tensor d_x;                   // act
  Tensor d_weight_C, d_bias_C;  // f32, optional
  bool accumulate = false;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    const Access grad = op.accumulate ? Access::kReadWrite : Access::kWrite;
    v("d_y", op.d_y, Access::kRead);
    v("x", op.x, Access::kRead);
    v("weight", op.weight_C, Access::kRead);
    v("mean", op.mean_R, Access::kRead);
    v("rstd", op.rstd_R, Access::kRead);
    v("d_residual", op.d_residual, Access::kRead);
    v("d_x", op.d_x, Access::kWrite);
    v("d_weight", op.d_weight_C, grad);
    v("d_bias", op.d_bias_C, grad);
  }
};

}  // namespace shale
