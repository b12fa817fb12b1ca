// Gathers parameter groups ahead of their use.
#pragma once

#include <vector>

#include "engine/step/state.h"

namespace shale {

// One use of gathered parameters: a visit of a unit (engine/step/visits.h).
struct GatherUse {
  int unit = -1;
  Phase phase = Phase::kForward;
  std::vector<GroupId> groups;
};

// Walks a fixed list of uses. Before use i it issues what uses i .. i + prefetch still lack, so that the gather stream
// works ahead by as many units; the buffers' lifetimes, hence the memory, follow from the order of issue.
class Gatherer {
 public:
  Gatherer(const ModelGraph& model, const StepOptions& options, const JobState& state, std::vector<GatherUse> uses,
           ProgramWriter& writer);

  // Call before the instructions of use `index`, in order of index. Uses are numbered as in the list.
  void Prepare(int index);
  // The full group in the compute dtype, as use `index` reads it.
  const Tensor& Full(int index, GroupId group) const;

 private:
  void Issue(int index);

  const ModelGraph& model_;
  const StepOptions& options_;
  const JobState& state_;
  ProgramWriter& writer_;
  std::vector<GatherUse> uses_;
  std::vector<std::vector<Tensor>> gathered_;  // By use, as its `groups`.
  std::vector<Tensor> kept_;  // By group: gathered in forward and not freed (reshard_after_forward off).
  int issued_ = 0;
};

}  // namespace shale
