// Gatherer: emits the all-gathers of parameter groups ahead of their use.
#pragma once

#include <vector>

#include "engine/compile/program/program.h"
#include "engine/compile/step/state.h"

namespace shale {

// The gathered parameters that one visit of a unit uses (engine/compile/step/visits.h).
struct GatherUse {
  int unit = -1;
  Phase phase = Phase::kForward;
  std::vector<GroupId> groups;
};

// Emits the all-gathers for a fixed list of uses. Before use i it emits those of all uses up to i + prefetch, so that
// the gather stream works up to `prefetch` uses ahead of the compute stream. A gathered buffer lives from its
// all-gather to its last use, so `prefetch` also decides how many gathered units exist at once.
//
// Weights in host memory (StepOptions::offload_state) are copied into the arena before each all-gather, on the copy
// stream, one use ahead of it. On one shard, where nothing is gathered, that copy takes the place of the all-gather.
//
// Frozen weights that are stored in fewer bits than they are used (ParameterGroup::stored) are gathered as they are
// stored. An op on the compute stream widens them right before each use into a buffer that lives until the use ends, so
// only one unit at a time exists in both forms. Rejected: widening on the gather stream, ahead of the use, which would
// hold two widened units.
//
// Borrows the references that the constructor takes.
class Gatherer {
 public:
  Gatherer(const ModelGraph& model, const StepOptions& options, const JobState& state, std::vector<GatherUse> uses,
           ProgramWriter& writer);

  // Emits the all-gathers that are due before use `index` of the list, and widens what that use needs. Call it for each
  // use in order, before the instructions of that use are emitted.
  void Prepare(int index);
  // Returns the full group in the compute dtype, as use `index` reads it. REQUIRES: Prepare(index) was called, and the
  // use's `groups` contain the group.
  const Tensor& Full(int index, GroupId group) const;

 private:
  // Emits the copies into the arena of the weights that use `index` gathers and that lie in host memory.
  void Fetch(int index);
  void Issue(int index);
  void Widen(int index);

  const ModelGraph& model_;
  const StepOptions& options_;
  const JobState& state_;
  ProgramWriter& writer_;
  std::vector<GatherUse> uses_;
  // By use, in the order of its `groups`: what was gathered, and after Prepare what the use reads.
  std::vector<std::vector<Tensor>> gathered_;
  int prepared_ = 0;  // Uses for which Prepare was called.
  // By group: the tensor that was gathered first, if reshard_after_forward is off. All later uses read it too.
  std::vector<Tensor> kept_;
  std::vector<std::vector<Tensor>> fetched_;  // By use, in the order of its `groups`: absent if there is no copy.
  std::vector<bool> fetches_no_more_;         // By group: whether its weights were fetched into a tensor that is kept.
  int issued_ = 0;                            // Uses whose all-gathers were emitted.
  int copied_ = 0;                            // Uses whose copies were emitted.
};

}  // namespace shale
