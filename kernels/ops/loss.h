// The losses. kernels/ops.h says what holds for all ops.
//
// T tokens, V vocabulary, D values of a target.
#pragma once

#include "absl/strings/string_view.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shale {

// Per row: loss = weight * (logsumexp(x) - x[target]), where x are the logits, or with a cap above 0, cap tanh(logits /
// cap). If `gradient` is set, also overwrites logits with their gradient (softmax(x) - onehot(target)) * weight *
// scale[0], with a cap times 1 - (x / cap)^2. Without `weights` every weight is 1. A row with a negative target or with
// weight 0 has loss 0 and gradient 0, whatever its logits are.
struct CrossEntropy {
  static constexpr absl::string_view kName = "CrossEntropy";
  Tensor logits_TV;  // act; overwritten if `gradient` is set
  Tensor targets_T;  // i32, may be strided
  Tensor scale_1;    // f32; read only if `gradient` is set
  Tensor loss_T;     // f32
  bool gradient = true;
  Tensor weights_T;  // f32, optional, may be strided; of any sign
  float cap = 0;     // 0: none
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("logits", op.logits_TV, op.gradient ? Access::kReadWrite : Access::kRead);
    v("targets", op.targets_T, Access::kRead);
    v("scale", op.scale_1, Access::kRead);
    v("weights", op.weights_T, Access::kRead);
    v("loss", op.loss_T, Access::kWrite);
  }
};

// Per row: loss = weight * mean over the D columns of (prediction - target)^2. If `d_prediction` is given, it becomes
// the gradient 2 (prediction - target) / D * weight * scale[0]. Without `weights` every weight is 1. A row with weight
// 0 has loss 0 and gradient 0, whatever its prediction is.
struct SquaredError {
  static constexpr absl::string_view kName = "SquaredError";
  Tensor prediction_TD;    // act
  Tensor targets_TD;       // f32, rows may be strided
  Tensor scale_1;          // f32; read only if `d_prediction` is given
  Tensor loss_T;           // f32
  Tensor d_prediction_TD;  // act, optional; may be `prediction` itself
  Tensor weights_T;        // f32, optional, may be strided; of any sign
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("prediction", op.prediction_TD, Access::kRead);
    v("targets", op.targets_TD, Access::kRead);
    v("scale", op.scale_1, Access::kRead);
    v("weights", op.weights_T, Access::kRead);
    v("loss", op.loss_T, Access::kWrite);
    v("d_prediction", op.d_prediction_TD, Access::kWrite);
  }
};

}  // namespace shale
