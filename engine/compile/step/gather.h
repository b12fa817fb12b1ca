// Gatherer: emits the all-gathers of the parameters that a visit uses.
#pragma once

#include <vector>

#include "engine/compile/program/program.h"
#include "engine/compile/step/state.h"
#include "engine/compile/step/visits.h"

namespace shale {

// Emits an all-gather for each group right before the visit that reads it, as if the weights lay in the arena:
// OverlapCollectives issues it earlier, and OffloadState copies weights that lie in host memory
// (engine/compile/step/passes.h). A gathered buffer lives from its all-gather to the end of the visit, or to its last
// use if reshard_after_forward is off.
//
// Weights are gathered as they are stored (engine/compile/graph/storage.h). If that is not how ops use them, an op on
// the compute stream widens them right before each use into a buffer that lives until the use ends, so only one unit at
// a time exists in both forms. Rejected: widening on the gather stream, ahead of the use, which would hold two widened
// units.
//
// Borrows the references that the constructor takes.
class Gatherer {
 public:
  Gatherer(const ModelGraph& model, const StepOptions& options, const JobState& state, ProgramWriter& writer)
      : model_(model),
        options_(options),
        state_(state),
        writer_(writer),
        full_(model.groups.size()),
        kept_(model.groups.size()) {}

  // Emits what must come before the instructions of a visit that reads these groups. Call it for each visit in order.
  void Gather(const Visit& visit, const std::vector<GroupId>& groups);
  // Returns the full group as ops use it, for the current visit. REQUIRES: the visit reads the group.
  const Tensor& Full(GroupId group) const;

 private:
  // Returns the full group in its stored form.
  Tensor Gathered(const Visit& visit, GroupId group);
  // Returns the full group as ops use it. This is the one place where a stored form becomes the used one.
  Tensor Widen(const Visit& visit, GroupId group, const Tensor& stored);

  const ModelGraph& model_;
  const StepOptions& options_;
  const JobState& state_;
  ProgramWriter& writer_;
  std::vector<Tensor> full_;  // By group: what the current visit reads. Absent if it does not read the group.
  // By group: the tensor that was gathered first, if reshard_after_forward is off. All later uses read it too.
  std::vector<Tensor> kept_;
};

}  // namespace shale
