// Emits what turns the gradients of a step into new parameters: the norm of the gradients and the updates.
//
//   AFTER_BACKWARD                              IN_BACKWARD
//     backward of all units                       backward of unit u
//     squared norms of all groups                 squared norms of the groups of unit u + 1, all-reduced
//     one all-reduce of the totals                reductions of unit u
//     updates of all groups                       updates of the groups of unit u + 1, whose gradients end here
//                                                 ...
//
// All groups share the totals of the step (Clipping::kGlobal), or each flat group has totals of its own, which decide
// about its clipping and whether its gradient is finite (Clipping::kPerUnit, and always with IN_BACKWARD).
//
// [Note: totals over a mesh] Totals are {loss, squared norm, non-finite}. Without replicas an all-reduce sums all
// three. Replicas hold equal gradients, whose squares must be counted once, but their losses differ. So on a mesh with
// replicas
//   1. an all-reduce of one number sums the loss over all ranks, before anything looks at it;
//   2. an all-gather along `shard` brings the totals of each rank of a row together;
//   3. CombineTotals takes the loss, sums the squared norms, and takes the largest flag.
// All replicas sum in the same order, so that they agree about clipping to the bit, whatever the communicator.
#pragma once

#include <vector>

#include "engine/step/options.h"
#include "engine/step/state.h"
#include "engine/step/writer.h"

namespace shale {

// Emits an all-reduce of `data`, a few numbers, over all ranks. Emits nothing if there is one rank.
void EmitAllReduce(const Mesh& mesh, const EmitContext& context, const Tensor& data, ProgramWriter& writer);

// One per training program. Borrows what it is given.
class Updater {
 public:
  // `hyper` and `valid_tokens` are on the device before the first unit begins.
  Updater(const StepOptions& options, const JobState& state, const Tensor& hyper, const Tensor& valid_tokens,
          ProgramWriter& writer);

  // Call after the backward of a unit and before its reductions. With IN_BACKWARD, emits the norms of the gradients
  // that wait for their update. Their all-reduces are then ahead of the unit's reductions on the reduce stream, so that
  // their updates do not have to wait for these.
  void BeginReductions();
  // Call after the reductions of a unit, with the groups whose gradients are complete now. With IN_BACKWARD, emits the
  // updates of the groups that BeginReductions measured, and lets the new ones wait while the next unit runs.
  // `in_loop`: the instructions belong to the last iteration of the loop that is open.
  void EndReductions(const std::vector<GroupId>& complete, bool in_loop);
  // Call after the last unit. Emits the updates that are not emitted yet, and what leaves the totals of the step,
  // summed over all ranks, in JobState::totals.
  void Finish();

 private:
  Instruction& Emit(const EmitContext& context, Action action);
  // Returns the totals of a group, a row of `group_totals_`.
  Tensor TotalsOf(GroupId group) const;
  // Emits the sum of squares of this rank's shard of a group's gradient.
  void EmitSquares(GroupId group, const Tensor& total, bool accumulate);
  void EmitGroupTotals(GroupId group);
  // On a mesh with replicas, emit step 1, and steps 2 and 3, of [Note: totals over a mesh]. `totals` are a rank's own.
  void SumLoss(Phase phase);
  void CombineOverShards(const Tensor& totals, Phase phase);
  bool has_replicas() const { return options_.mesh.replicate > 1; }
  Tensor EmitPrepare(const Tensor& totals, bool counts);
  void EmitUpdate(GroupId group, const Tensor& update);
  void UpdateWaiting();
  void UpdateAllByOneNorm();

  const StepOptions& options_;
  const JobState& state_;
  const Tensor hyper_, valid_tokens_;
  ProgramWriter& writer_;
  const bool by_group_, in_backward_;
  Tensor group_totals_;           // f64 [G, kTotalSize]; absent if all groups share the totals of the step.
  std::vector<GroupId> waiting_;  // Groups whose gradients are complete and which are not updated yet.
  int groups_updated_ = 0;
  bool in_loop_ = false;
  bool loss_is_summed_ = false;  // By SumLoss.
};

}  // namespace shale
