// Reducer: decides where a unit's backward writes its gradients, and emits the collectives that reduce them.
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "engine/compile/program/program.h"
#include "engine/compile/step/state.h"
#include "engine/compile/step/writer.h"
#include "kernels/ops/flat.h"

namespace shale {

// A program has one Reducer. If a group has a full gradient (one rank, or unsharded accumulation), backward accumulates
// there. Otherwise the backward of a unit writes to a unit gradient in fp32, which lives until it has been reduced into
// the rank's shard or, on one rank, added to a bf16 gradient. If the optimizer state is sharded, reductions run along
// `shard`. With replicas, an all-reduce along `replicate` then sums the rank's shard of the group once a step, after
// its last reduction. Reductions overlap with the backward of the next unit (OverlapCollectives). Borrows the
// references that the constructor takes.
//
// [Note: bf16 gradients] With StepOptions::gradient_shards bf16, backward and collectives still compute in fp32. Only
// the sum over the step is stored in bf16, and rounded stochastically at each addition: once per unit of the group and
// micro-batch, and once after the sum over replicas. The random bits depend on the number of the update and of the
// micro-batch, which are on the device, and on the group's element, so they are the same for any number of ranks. The
// squares are summed from the bf16 gradient. Each update widens its group's gradient into a buffer of its own.
//
// [Note: gradients that leave in bf16] With StepOptions::reduce bf16, backward still computes in fp32. When the
// gradient of a group is to be reduced along `shard`, the compute stream rounds it stochastically to bf16, so that its
// fp32 buffer is free for the next unit; RoundInBackward (engine/compile/step/passes.h) rounds most of it earlier,
// piece by piece. An AllToAll gives each rank the parts that it owns, and SumRows adds them in fp32 in the order of
// ranks, into the fp32 shard of the group. NCCL has no such sum: its bf16 sums round at each of their hops. What is
// received would take as many bytes as what is sent, so large groups go in several parts, through one buffer. The
// random bits depend on the rank too: with equal bits the errors of the ranks would add up.
class Reducer {
 public:
  Reducer(const ModelGraph& model, const StepOptions& options, const JobState& state, ProgramWriter& writer);

  // Returns InvalidArgument if so many units use a group that the roundings of its gradient to bf16 in a micro-batch
  // would have random bits in common. Call it before all others.
  absl::Status CheckRoundings() const;

  // Call before the backward of a unit, and for the last unit before its forward. Creates the unit gradients of groups
  // without a full gradient, and zeroes the elements of gradients that no op writes.
  void BeginUnit(int unit);
  // Returns the tensor to which the unit's backward writes the gradient of a parameter.
  Tensor Gradient(int unit, ParameterId parameter);
  // Sets whether an op of `unit` that writes the gradients of `parameters` overwrites them or adds to them. Call it in
  // the order in which the ops are emitted. Returns the value of Instruction::first_iteration_differs.
  bool SetAccumulation(int unit, Op& op, const std::vector<ParameterId>& parameters);
  // Emits the reductions of a unit. Call it after its backward.
  void Reduce(int unit);

 private:
  struct GroupProgress {
    std::vector<int> units;  // Units that write gradients of the group, ascending. Backward visits the last one first.
    int units_done = 0;      // How many of them have had their backward emitted.
    Tensor unit_gradient;    // Unit gradient of the unit in progress.
  };
  // Returns the groups whose gradients the unit writes.
  const std::vector<GroupId>& GroupsWritten(int unit) const { return groups_written_[unit]; }
  void ReduceUnitGradient(int unit, GroupId group);
  void ReduceStepGradient(int unit, GroupId group);
  // Returns whether gradients leave a rank in bf16.
  bool sends_narrow() const { return options_.reduce != DType::kFloat32; }
  // Returns the micro-batch of the instructions before and after a unit's backward.
  int micro_batch() const { return layered_ ? -1 : 0; }
  // Returns whether a group's gradient is complete after a single reduction, of its only unit in its only iteration.
  bool IsReducedOnce(GroupId group) const {
    return (layered_ || options_.micro_batches == 1) && progress_[group].units.size() == 1;
  }
  // Emits what sums `full`, f32, over the ranks of a row, in bf16. `sum` is f32, the rank's shard. `rounding` is the
  // number of this reduction among those of a micro-batch. The other arguments are those of EmitAccumulate. See [Note:
  // gradients that leave in bf16].
  void EmitNarrowReduction(const EmitContext& context, GroupId group, const Tensor& full, const Tensor& sum,
                           bool accumulate, int rounding, bool first_iteration_differs);
  // Sets what decides the random bits of an op that rounds a gradient of a group.
  void SetRounding(const EmitContext& context, GroupId group, Accumulate& op);
  // Emits the addition of `x`, f32, to the rank's part of a group's gradient. `rounding` is the number of this addition
  // among those of a micro-batch. See [Note: bf16 gradients].
  void EmitAccumulate(const EmitContext& context, GroupId group, const Tensor& x, bool accumulate, int rounding,
                      bool first_iteration_differs);
  // Emits the all-reduce that sums a group's gradient shard over the replicas in the last micro-batch. Emits nothing if
  // there are no replicas of shards.
  void SumOverReplicas(int unit, GroupId group);

  const ModelGraph& model_;
  const StepOptions& options_;
  const JobState& state_;
  ProgramWriter& writer_;
  const bool layered_;
  std::vector<std::vector<GroupId>> groups_written_;  // By unit.
  std::vector<GroupProgress> progress_;               // By group.
  // Where ops have written gradients already: the buffer, and the offset of the view in it. Views of one gradient are
  // equal or do not overlap.
  std::set<std::pair<BufferId, int64_t>> written_;
  Tensor micro_batch_;  // i64[1], the number of the micro-batch. Absent until a bf16 gradient needs it.
};

}  // namespace shale
