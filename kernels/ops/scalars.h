// Ops on the scalars of a step, which stay on the device. kernels/step_scalars.h says where each of them lies, and
// kernels/ops.h what holds for all ops.
//
// G groups. A number in a tensor's name is its size.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shale {

// The factor that makes the sum of the losses their mean: 1 / valid_tokens, or 0 if no token is valid. With
// `weight_total`, that takes the place of valid_tokens. With `loss_scale`, multiplies by its factor.
struct MeanFactor {
  static constexpr absl::string_view kName = "MeanFactor";
  Tensor valid_tokens_1;  // i64
  Tensor factor_1;        // f32
  Tensor weight_total_1;  // f64, optional: the sum of |weight| over the targets
  Tensor loss_scale_3;    // f64, optional, kLossScale*
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("valid_tokens", op.valid_tokens_1, Access::kRead);
    v("weight_total", op.weight_total_1, Access::kRead);
    v("loss_scale", op.loss_scale_3, Access::kRead);
    v("factor", op.factor_1, Access::kWrite);
  }
};

// Sets totals[kTotalNonFinite] to 1 if the loss sum or the squared norm of this rank is not finite, else to 0. If it is
// 1, also sets the other two totals to 0, so that their sums over the ranks stay defined and only the third total
// reports the error. With `loss_scale`, whose factor the gradient has, divides the squared norm by its square, and
// leaves the loss as it is: an overflow of the gradient says nothing about the loss.
struct FlagNonFinite {
  static constexpr absl::string_view kName = "FlagNonFinite";
  Tensor totals_3;      // f64
  Tensor loss_scale_3;  // f64, optional, kLossScale*
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("loss_scale", op.loss_scale_3, Access::kRead);
    v("totals", op.totals_3, Access::kReadWrite);
  }
};

// Combines G rows of totals into one: the rows of the flat groups of a step, or of the ranks in a row of the mesh. All
// rows have the same loss. If no row is flagged, writes the loss of row 0, the sum of the squared norms in the order of
// the rows, and flag 0. Otherwise writes 0, 0 and the largest flag, or with `keeps_loss` the loss of row 0 all the
// same.
struct CombineTotals {
  static constexpr absl::string_view kName = "CombineTotals";
  Tensor groups_G3;  // f64, rows of kTotal*; at least one
  Tensor totals_3;   // f64, kTotal*
  bool keeps_loss = false;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("groups", op.groups_G3, Access::kRead);
    v("totals", op.totals_3, Access::kWrite);
  }
};

// Decides whether this step updates the weights. Skips the update if no token is valid, if weight_total is given and is
// not above 0, or if a total is not finite. Otherwise computes the values that an Update needs for update number n =
// update_count + 1, and then sets update_count to n if `counts` is set. The factor on the gradient is min(1, max_norm /
// (norm + 1e-6)), or 1 without clipping. The norm is that of the totals, or previous_norm if it is given; a
// previous_norm of 0 does not clip. Writes n to `number`, even if it skips the update. max_norm is that of `hyper`,
// unless the op has one.
//
// With `loss_scale`, whose factor the gradient has but the totals have not, divides the factor on the gradient by it.
// If `counts` is set, then sets the loss scale for the next step: multiplies it by backoff_factor if a total is not
// finite, and by growth_factor after growth_interval updates in a row, unless fp32 cannot hold that. (This is
// torch.amp.GradScaler.)
struct PrepareUpdate {
  static constexpr absl::string_view kName = "PrepareUpdate";
  Tensor hyper_2;          // f32, kHyper*
  Tensor valid_tokens_1;   // i64
  Tensor totals_3;         // f64, kTotal*, summed over ranks
  Tensor update_count_1;   // i64, persistent
  Tensor update_5;         // f32, kUpdate*
  Tensor number_1;         // i64, optional
  Tensor previous_norm_1;  // f64, optional, persistent: of RecordNorm
  Tensor weight_total_1;   // f64, optional: the sum of |weight| over the targets of all ranks
  Tensor loss_scale_3;     // f64, optional, persistent, kLossScale*
  double growth_factor = 2;
  double backoff_factor = 0.5;
  int64_t growth_interval = 2000;
  double beta1 = 0.9;
  double beta2 = 0.95;
  bool counts = true;  // If a step prepares several updates, for groups of parameters, only the last one counts.
  float learning_rate_factor = 1;  // The update's learning rate is that of `hyper` times this.
  float max_norm = -1;             // The largest norm, 0: no clipping. Negative: that of `hyper`.
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("hyper", op.hyper_2, Access::kRead);
    v("valid_tokens", op.valid_tokens_1, Access::kRead);
    v("totals", op.totals_3, Access::kRead);
    v("update_count", op.update_count_1, op.counts ? Access::kReadWrite : Access::kRead);
    v("previous_norm", op.previous_norm_1, Access::kRead);
    v("weight_total", op.weight_total_1, Access::kRead);
    v("loss_scale", op.loss_scale_3, op.counts ? Access::kReadWrite : Access::kRead);
    v("update", op.update_5, Access::kWrite);
    v("number", op.number_1, Access::kWrite);
  }
};

// Sets norm to the root of the squared norm, for the next step. Leaves it alone in a step that PrepareUpdate skips.
struct RecordNorm {
  static constexpr absl::string_view kName = "RecordNorm";
  Tensor valid_tokens_1;  // i64
  Tensor totals_3;        // f64, kTotal*, summed over ranks
  Tensor norm_1;          // f64, persistent; 0 before the first step
  Tensor weight_total_1;  // f64, optional, as in PrepareUpdate
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("valid_tokens", op.valid_tokens_1, Access::kRead);
    v("totals", op.totals_3, Access::kRead);
    v("weight_total", op.weight_total_1, Access::kRead);
    v("norm", op.norm_1, Access::kReadWrite);
  }
};

}  // namespace shale
