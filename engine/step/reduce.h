// Where gradients accumulate, and when they are reduced.
#pragma once

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "engine/step/state.h"

namespace shale {

// One per program. A group's gradients either accumulate in its persistent buffer (one rank, or unsharded over the
// step), or in a unit gradient that lives until it has been reduced into the rank's shard. On a mesh with replicas and
// shards, these reductions run along `shard`. Once a step, after the last of them, an all-reduce along `replicate` sums
// the rank's shard of the group. It overlaps with the backward of earlier units like all reductions.
class Reducer {
 public:
  Reducer(const ModelGraph& model, const StepOptions& options, const JobState& state, ProgramWriter& writer);

  // Before the backward of a unit: makes its unit gradients, where it needs them, and zeroes what nobody will write.
  void BeginUnit(int unit, int micro_batch);
  // Where the unit's backward writes the gradient of a parameter.
  Tensor Gradient(int unit, ParameterId parameter);
  // Sets how an op that writes the gradients of `parameters` in `unit` adds up. Returns
  // Instruction::first_iteration_differs.
  bool SetAccumulation(int unit, Op& op, const std::vector<ParameterId>& parameters);
  // After the backward of a unit: issues its reductions.
  // Returns the groups whose gradients are complete then: in a loop over micro-batches, after its last iteration.
  std::vector<GroupId> EndUnit(int unit, int micro_batch);

 private:
  struct GroupProgress {
    std::vector<int> units;  // The units that write gradients of the group.
    int units_done = 0;      // How many of them have ended, in issue order.
    Tensor unit_gradient;    // Of the unit in progress.
  };
  // Groups whose gradients the unit writes.
  const std::vector<GroupId>& GroupsWritten(int unit) const { return groups_written_[unit]; }
  void ReduceUnitGradient(int unit, GroupId group, int micro_batch);
  void ReduceStepGradient(int unit, GroupId group, int micro_batch);
  // Sums the gradient of a group over the replicas, in the last micro-batch. Emits nothing without replicas of shards.
  void SumOverReplicas(int unit, GroupId group, int micro_batch);

  const ModelGraph& model_;
  const StepOptions& options_;
  const JobState& state_;
  ProgramWriter& writer_;
  const bool layered_;
  std::vector<std::vector<GroupId>> groups_written_;  // By unit.
  std::vector<GroupProgress> progress_;               // By group.
  std::set<std::pair<BufferId, ParameterId>> written_;
  std::vector<BufferId> in_flight_;  // Unit gradients of the unit before, being reduced.
};

}  // namespace shale
