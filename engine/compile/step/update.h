// Updater: emits the instructions that turn the gradients of a step into new parameters: norms and updates.
//
//   AFTER_BACKWARD                              IN_BACKWARD
//     backward of all units                       backward of unit u
//     squared norms of all groups                 squared norms of the groups of unit u + 1, summed over ranks
//     sum of the totals over ranks                reductions of unit u
//     updates of all groups                       updates of the groups of unit u + 1, whose gradients end here
//                                                 ...
//
// Totals (loss, squared norm, whether a gradient is not finite) decide how gradients are clipped, and whether an update
// is skipped. Gradients are usually clipped by the norm of the step (Clipping::kGlobal), so all groups share one set of
// totals. An update in backward cannot wait for that norm: each flat group then has totals of its own. So it has, at
// either time, with the two other clippings:
//   kPerUnit        a group is clipped by its own norm
//   kPreviousNorm   all groups are clipped by JobState::previous_norm, the norm of the last step that skipped no group
//
// [Note: totals over a mesh] Totals are {loss, squared norm, non-finite}. Without replicas an all-reduce sums all
// three. Replicas hold equal gradients, whose squares must be counted once, but their losses differ. So on a mesh with
// replicas
//   1. an all-reduce of one number sums the loss over all ranks, before any op reads it;
//   2. an all-gather along `shard` brings the totals of the ranks of a row together;
//   3. CombineTotals takes the loss, sums the squared norms, and takes the largest flag.
// With one shard, steps 2 and 3 are left out. All replicas sum in the same order, so their clipping agrees to the bit
// with every communicator.
//
// [Note: state in host memory] StepOptions::offload_state keeps tensors of the groups in host memory. For the update of
// a group its tensors are copied into the arena, and back after it, on the copy stream. The next group is copied in
// while this one is updated, so the arena holds the tensors of at most two groups. With AFTER_BACKWARD:
//
//   copy       in 0, in 1            out 0, in 2   out 1, in 3   ...
//   compute    norms ..... update 0  update 1      update 2      ...
//
// With IN_BACKWARD a group is copied in before the backward that precedes its update.
//
// [Note: update on the host] says what UpdateDevice::kHost changes.
//
// JobState::update_count counts the steps that updated. If each group has totals of its own, the group that is updated
// last decides: if its gradient is not finite, the step is not counted, although other groups were updated. The next
// step then has the same number, and rounds stochastically with the same random bits.
//
// HostUpdater: emits the instructions that update groups on the host.
//
// [Note: update on the host] With UpdateDevice::kHost, masters, moments and a copy of the weights stay in host memory.
// Only gradients go there and only weights come back, on the copy stream. The update runs on StreamId::kHost:
//
//   copy   gradient 0, gradient 1     gradient 2, weight 0   gradient 3, weight 1   ...
//   host                   update 0   update 1               update 2               ...
//
// So the gradient of the next group and the weights of the group before move while a group is updated, and host memory
// holds the gradients of two groups. Norms, clipping and the decision to skip are computed on the device, and update 0
// is preceded by a copy of a few scalars, on the host stream. A skipped update leaves the weights in host memory as
// they are, and their copy back changes nothing.
//
// With IN_BACKWARD the gradient of a group goes to the host before the backward of the next unit, or on one rank right
// after its own backward, and the weights of a group come back after the next unit's backward. A gradient keeps its
// bytes in the arena for that long, so that no backward has to wait for the copy.
#pragma once

#include <vector>

#include "engine/compile/step/options.h"
#include "engine/compile/step/state.h"
#include "engine/compile/step/writer.h"

namespace shale {

// Emits an all-reduce of `data`, a few numbers, over all ranks. Emits nothing if there is one rank.
void EmitAllReduce(const Mesh& mesh, const EmitContext& context, const Tensor& data, ProgramWriter& writer);

// What a step counts over its global batch before the first unit begins, summed over all ranks.
struct TargetCounts {
  Tensor valid_tokens;  // i64[1]
  Tensor weight_total;  // f64[1], the sum of |weight|. Absent without weights.
};

// Emits norms and updates. A training program has one. Borrows the references that the constructor takes.
class Updater {
 public:
  // `hyper` and `counts` must be on the device before the first unit begins.
  Updater(const StepOptions& options, const JobState& state, const Tensor& hyper, const TargetCounts& counts,
          ProgramWriter& writer);

  // Call after the backward of a unit and before its reductions. With IN_BACKWARD, emits the norms of the groups that
  // wait for their update. The collectives of these norms are then ahead of the unit's reductions on the reduce stream,
  // so the updates of the waiting groups do not wait for the reductions.
  void BeginReductions();
  // Call after the reductions of a unit, with the groups whose gradients are complete now. With IN_BACKWARD, emits the
  // updates of the groups whose norms BeginReductions has emitted, and lets the groups in `complete` wait while the
  // next unit runs (on one rank, updates them at once).
  void EndReductions(const std::vector<GroupId>& complete);
  // Call after the last unit. Emits the remaining updates, and the instructions that write the totals of the step,
  // summed over all ranks, to JobState::totals.
  void Finish();

 private:
  // Emits an instruction of the compute stream. Like all of this class, it runs once a step: in a loop over
  // micro-batches, in the last iteration.
  void Compute(Action action);
  // Returns the totals of a group, a row of `group_totals_`.
  Tensor TotalsOf(GroupId group) const;
  // Emits the sum of squares of this rank's shard of a group's gradient.
  void EmitSquares(GroupId group, const Tensor& total, bool accumulate);
  void EmitGroupTotals(GroupId group);
  // SumLoss emits step 1, and CombineOverShards steps 2 and 3, of [Note: totals over a mesh]. SumLoss emits nothing
  // without replicas, or if it has been called before. `totals` are a rank's own.
  void SumLoss(Phase phase);
  void CombineOverShards(const Tensor& totals, Phase phase);
  bool has_replicas() const { return options_.mesh.replicate > 1; }
  // The outputs of a PrepareUpdate. `number` is absent if the updates round nothing stochastically.
  struct Prepared {
    Tensor update, number;
  };
  Prepared EmitPrepare(const Tensor& totals, bool counts, const Optimizer& optimizer);
  const Optimizer& OptimizerOf(GroupId group) const {
    return options_.OptimizerOf(state_.groups[group].optimizer_group);
  }
  // Returns a group's gradient in fp32, and emits the copy that widens it if it is stored in bf16.
  Tensor WidenedGradient(GroupId group);
  // Emits the update of a group, and the copies of its state back to host memory.
  void EmitUpdate(GroupId group, const Prepared& prepared);
  void UpdateWaiting();
  void UpdateAllByOneNorm();

  const StepOptions& options_;
  const JobState& state_;
  const Tensor hyper_;
  const TargetCounts counts_;
  ProgramWriter& writer_;
  const bool by_group_, in_backward_;
  const std::vector<GroupId> trained_;  // The groups that train, ascending.
  // f64 [G, kTotalSize], with a row for each group that trains. Absent if all groups share the totals of the step.
  Tensor group_totals_;
  std::vector<GroupId> waiting_;  // Groups whose gradients are complete and which are not updated yet.
  int groups_updated_ = 0;
  bool loss_is_summed_ = false;  // By SumLoss.
};

}  // namespace shale
