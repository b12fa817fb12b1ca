// The update of weights and states by an optimizer's rule. kernels/ops.h says what holds for all ops.
//
// P parameters of a rank's shard of a flat group.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "kernels/dtype.h"
#include "kernels/element_range.h"
#include "kernels/op.h"
#include "kernels/tensor.h"
#include "kernels/update_rules.h"

namespace shale {

// Applies an update rule (kernels/update_rules.h) to a rank's shard of a flat group, in fp32. The master p is `master`
// (f32), or `weight` joined with `low` (SPLIT), or `weight` itself if neither is given. A bf16 weight with a master
// becomes RoundMaster(p). Does nothing if update[kUpdateSkip] is set. Element i of the shard is element `shard_begin +
// i` of the group; shard_begin is a multiple of BlockOf(rule), and so is P unless the shard is the group's last.
// `decayed` lists the ranges of the group that have weight decay; null: none has.
//
// bf16 states, and a bf16 weight that is its own master, are rounded stochastically from their fp32 values, by the bits
// of a RoundingStream (kernels/counter_random.h) of `seed`, `number`, `group` and the tensor. The states of this update
// enter p before they are rounded. `number` is given if and only if something is rounded so, and shard_begin is then a
// multiple of kRandomBlock.
struct Update {
  Tensor update_5;    // f32
  Tensor gradient_P;  // f32
  Tensor weight_P;    // f32, bf16 or f16. f16 needs a master.
  Tensor master_P;    // f32, optional
  Tensor low_P;       // i16, optional
  UpdateRule rule;
  std::array<Tensor, kMaxUpdateStates> states;  // Those of StatesOf(rule), each [ceil(P / block)] of its dtype.
  std::shared_ptr<const std::vector<ElementRange>> decayed;
  int64_t shard_begin = 0;
  int64_t shard_stride = 0;  // SetShard sets shard_begin to index x shard_stride. 0: every rank updates the full group.
  Tensor number_1;           // i64, optional: the update's number, from PrepareUpdate.
  uint64_t seed = 0;
  int32_t group = 0;
  absl::string_view name() const { return NameOf(rule); }
  bool is_own_master() const { return !master_P.present() && !low_P.present(); }
  bool rounds_stochastically() const {
    return (is_own_master() && weight_P.dtype == DType::kBFloat16) || HasBFloat16States(rule);
  }
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("update", op.update_5, Access::kRead);
    v("number", op.number_1, Access::kRead);
    v("gradient", op.gradient_P, Access::kRead);
    v("weight", op.weight_P, Access::kReadWrite);
    v("master", op.master_P, Access::kReadWrite);
    v("low", op.low_P, Access::kReadWrite);
    const absl::Span<const UpdateState> states = StatesOf(op.rule);
    for (size_t i = 0; i < states.size(); ++i) v(states[i].name, op.states[i], Access::kReadWrite);
  }
};

}  // namespace shale
