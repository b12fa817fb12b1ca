// Updater: emits the instructions that turn the gradients of a step into new parameters: norms and updates. Also the
// stages of Adafactor and Muon, which turn the gradient of a group into a direction.
//
//   backward of all units
//   squared norms of all groups
//   sum of the totals over ranks
//   updates of all groups
//
// Totals (loss, squared norm, and a flag: whether one of these is not finite) decide how gradients are clipped, and
// whether an update is skipped. Gradients are usually clipped by the norm of the step (Clipping::kGlobal), so all
// groups share one set of totals. An update in backward cannot wait for that norm: each flat group then has totals of
// its own, which are summed over ranks by themselves. Here they stand at the end of the step, too, and the pass
// UpdateInBackward moves each group to where its gradient is complete (engine/compile/step/passes.h). The two other
// clippings give each group totals of its own, whenever it is updated:
//   kPerUnit        a group is clipped by its own norm
//   kPreviousNorm   all groups are clipped by JobState::previous_norm, the norm of the last step that skipped no group
//
// Optimizer::max_gradient_norm clips the flat groups of one optimizer by the norm of their gradients alone. These
// groups share one set of totals, and all groups without such a norm share another. The flag is that of the step in
// every set, so a step updates all groups or none.
//
// [Note: totals over a mesh] sharding/mesh.h says what rows and replicas are. Totals are {loss, squared norm,
// non-finite}. Without replicas an all-reduce sums all three. Replicas hold equal gradients, whose squares must be
// counted once, but their losses differ. So on a mesh with replicas
//   1. an all-reduce of one number sums the loss over all ranks, before any op reads it;
//   2. an all-gather along `shard` brings the totals of the ranks of a row of the mesh together;
//   3. CombineTotals takes the loss, sums the squared norms, and takes the largest flag.
// With one shard, steps 2 and 3 are left out. All replicas sum in the same order, so their clipping agrees to the bit
// with every communicator.
//
// [Note: loss scale] With StepOptions::loss_scaling, MeanFactor multiplies the gradients of the loss by a factor, once
// for all micro-batches of a step. FlagNonFinite divides it out of the squared norm, so that totals and clipping know
// nothing of it, and PrepareUpdate divides it out of the gradient that an update reads. A gradient that overflowed on
// any rank sets the flag in the totals of all ranks, before any update: all skip the step, and PrepareUpdate sets the
// factor for the next one.
//
// JobState::update_count counts the steps that updated. If each group has totals of its own, the group that is updated
// last decides: if its gradient is not finite, the step is not counted, although other groups were updated. The next
// step then has the same number, and rounds stochastically with the same random bits.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "engine/compile/program/step_item.h"
#include "engine/compile/step/options.h"
#include "engine/compile/step/state.h"
#include "engine/compile/step/writer.h"
#include "kernels/ops/update.h"

namespace shale {

// Emits an all-reduce of `data`, a few numbers, over all ranks. Emits nothing if there is one rank.
void EmitAllReduce(const Mesh& mesh, const EmitContext& context, const Tensor& data, ProgramWriter& writer);

// Where the items of a step lie on the device.
using DataOfStep = std::map<StepItem, Tensor>;

// Emits norms and updates of groups, as if all that an update reads lay in the arena, and every update ran on the
// device at the end of the step: passes move what does not (engine/compile/step/passes.h). A training program has one
// Updater. Borrows the references that the constructor takes.
class Updater {
 public:
  // `data` must have kHyper and kValidTokens, and kWeightTotal if targets have weights: the last two summed over all
  // ranks before the first unit begins.
  Updater(const StepOptions& options, const JobState& state, const DataOfStep& data, ProgramWriter& writer);

  // Call after the last unit. Emits the updates of all groups that train, in their order, and the instructions that
  // write the totals of the step, summed over all ranks, to JobState::totals.
  void Emit();

 private:
  void Compute(Action action);
  // Returns the totals of a group: a row of `group_totals_`, or those of the step.
  Tensor TotalsOf(GroupId group) const;
  Tensor Row(size_t row) const;
  // Emits the sum of squares of this rank's shard of a group's gradient.
  void EmitSquares(GroupId group, const Tensor& total, bool accumulate);
  // Emits this rank's totals of groups that share a row.
  void EmitRow(const Tensor& totals, const std::vector<GroupId>& groups);
  // Emits all rows, summed over ranks: all at once, or for updates in backward each by itself.
  void EmitRows();
  // Emits the totals of the step: those of all rows together.
  void CombineRows();
  // SumLoss emits step 1, and CombineOverShards steps 2 and 3, of [Note: totals over a mesh]. SumLoss emits nothing
  // without replicas, or if it has been called before. SumOverRanks sums a rank's own `totals` over the ranks: without
  // replicas by one all-reduce of one row or several, else by steps 2 and 3, of one row, and SumLoss must have run.
  void SumLoss(Phase phase);
  void CombineOverShards(const Tensor& totals, Phase phase);
  void SumOverRanks(const Tensor& totals, Phase phase);
  bool has_replicas() const { return options_.mesh.replicate > 1; }
  // Emits a PrepareUpdate with these totals. Returns an update that reads it, and that lacks what belongs to one group.
  // `number_1` is absent if nothing is rounded stochastically and the optimizer is not Adafactor.
  Update EmitPrepare(const Tensor& totals, bool counts, const Optimizer& optimizer);
  const Optimizer& OptimizerOf(GroupId group) const { return options_.OptimizerOf(state_.groups[group]); }
  // Returns a group's gradient in fp32, and emits the copy that widens it if it is stored in bf16.
  Tensor WidenedGradient(GroupId group);
  void EmitUpdate(GroupId group, Update update);
  // Emits the totals of the step, and those of rows if optimizers clip their own gradients, before any update.
  void EmitTotalsOfStep();
  void UpdateAllTogether();

  const StepOptions& options_;
  const JobState& state_;
  const Tensor hyper_, valid_tokens_, weight_total_;  // Of `data`. The last is absent without weights.
  ProgramWriter& writer_;
  const bool by_group_;                 // Whether each group is updated by totals of its own.
  const std::vector<GroupId> trained_;  // The groups that train, ascending.
  // The groups that share totals of their own: each group that trains by itself, or those of each optimizer that clips
  // its own gradients, and before these all others. Empty if all groups share the totals of the step.
  std::vector<std::vector<GroupId>> rows_;
  Tensor group_totals_;          // f64 [rows_, kTotalSize]. Absent without rows.
  bool loss_is_summed_ = false;  // By SumLoss.
};

// Emits the stages of kernels/ops/adafactor.h for a group whose reduced gradient is complete, with the collectives
// between them. A shard may begin inside of a row, so ranks that have shards of the group
//
//   kSums        sum the squares of rows and columns in their shard, and all-reduce these sums
//   kMoments     update their shard of the second moments, and gather all of them
//   kDirection   divide their shard of the gradient by the roots of the moments, and add two sums for each parameter
//   kScale       clip and scale their shard
//
// Replicas have equal gradients and do the same, without communication. `own_moments` is the group's state
// AdafactorRule::kMoments. `update` is the group's update by AdafactorRule::last_rule, and reads the gradient. Lets it
// read the direction in place of the gradient.
void EmitFactoredDirection(const AdafactorRule& settings, const GroupState& g, const Tensor& own_moments,
                           Update& update, ProgramWriter& writer);

// Emits the stages of Muon for a group of matrices whose reduced gradient is complete:
//
//   shard     MuonDirection updates the momentum, and rounds the direction to f32, or to bf16 if weights have 16 bits
//   gather    an all-gather brings the direction whole to every rank that has a shard of the group
//   matrices  for each matrix: its norm, and iterations of three matmuls (kernels/ops/muon.h). The last one multiplies
//             by the factor on the learning rate of the matrix
//   shard     the update reads this rank's shard of the result
//
// Every rank computes all matrices, so equal gradients give equal bits with any number of ranks, and replicas do the
// same without communication. `momentum` is the group's state MuonRule::momentum_state. `update` is the group's update
// by MuonRule::last_rule, and reads the gradient. Lets it read the result in place of the gradient.
void EmitOrthogonalDirection(const MuonRule& rule, const GroupState& g, const Tensor& momentum, Update& update,
                             ProgramWriter& writer);

}  // namespace shale
