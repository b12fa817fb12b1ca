// The state of a job: where each parameter group's weights, masters, optimizer states and gradients lie.
#pragma once

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/compile/graph/graph.h"
#include "engine/compile/step/options.h"
#include "kernels/ops/adafactor.h"
#include "sharding/placement.h"

namespace shale {

class ProgramWriter;

// The part of a group that one rank saves in a checkpoint (GroupPlacement::Saved). Absent tensors are not saved.
struct SavedTensors {
  Tensor value;                  // f32: masters, or the weights of fp32 compute.
  Tensor high, low;              // bf16 weights, and with SPLIT their low bits.
  Tensor nf4_codes, nf4_absmax;  // u8: the parts of a row (kernels/nf4.h).
  Tensor nf4_scales, nf4_means;  // f32
  std::vector<Tensor> states;    // In the order of JobState::states.

  // Returns how many bytes all of them have.
  int64_t bytes() const;
};

// The state of one flat group on one rank. "Own" means the part that this rank updates (GroupPlacement::Owned): its
// shard of the group, or the full group if the optimizer state is not sharded.
//
// Tensors name the program's buffers and have no addresses. Those that the options do not call for are absent. Weights,
// masters and states lie in host memory if StepOptions::state_on_host says so.
struct GroupState {
  GroupPlacement placement;
  // Weights, in the form that ParameterGroup::storage says.
  Tensor own_weight;   // A view of full_weight, if there is one.
  Tensor full_weight;  // Absent if it has to be gathered for each use.
  // Only with UpdateDevice::kHost: the weights in host memory that the update reads and writes. Between steps they have
  // the bits of own_weight. If own_weight is in host memory, it is the same tensor.
  Tensor host_weight;
  Tensor master;               // f32. Only with bf16 or fp16 compute and fp32 masters.
  Tensor low;                  // i16. Only with SPLIT.
  std::vector<Tensor> states;  // In the order of JobState::states. Absent: its rule keeps no such state.
  // Only with a state of rows and columns: how it lies on the ranks, and where it has those of each parameter, in the
  // order of the layout's parameters.
  std::optional<GroupPlacement> factor_placement;
  std::shared_ptr<const std::vector<FactoredParameter>> factored;
  Tensor own_gradient;                // Dtype StepOptions::gradient_shards. Persistent only with keep_gradients.
  Tensor full_gradient;               // f32. Sum over the step. Absent if gradients are reduced unit by unit.
  std::vector<ElementRange> decayed;  // Elements of the group that decay.
  SavedTensors saved;                 // Views of the above.
  // A copy of `saved` in the same memory. Absent without StepOptions::snapshot. A frozen group needs no copy, because
  // no step changes it: this is `saved` itself.
  SavedTensors snapshot;
  bool frozen = false;                 // Whether it does not train: then it has only weights, and what is saved.
  int optimizer_group = -1;            // As ParameterGroup::optimizer_group.
  bool block_matrices = false;         // As ParameterGroup::block_matrices.
  Storage storage = Storage::kAsUsed;  // As ParameterGroup::storage.
  bool float8 = false;                 // As ParameterGroup::float8.

  const ShardLayout& layout() const { return placement.layout(); }
  // Returns how a state lies on the ranks. It has one element for each UpdateState::block elements of the placement.
  const GroupPlacement& PlacementOf(const UpdateState& state) const {
    return state.extent == StateExtent::kElements ? placement : *factor_placement;
  }
  // Returns the weights that this rank holds between steps (GroupPlacement::Weights).
  const Tensor& weights() const { return full_weight.present() ? full_weight : own_weight; }
};

struct JobState {
  std::vector<GroupState> groups;  // By GroupId.
  // Those that the optimizers of all groups declare, each once. Those of rows and columns are the last.
  std::vector<UpdateState> states;
  Tensor update_count;   // i64[1]. Updates applied so far.
  Tensor previous_norm;  // f64[1], of RecordNorm. Present only with Clipping::kPreviousNorm.
  // f64[kLossScaleSize], of MeanFactor and PrepareUpdate. Present only with StepOptions::loss_scaling.
  Tensor loss_scale;
  double init_loss_scale = 0;    // The first loss scale.
  Tensor totals;                 // f64[kTotalSize].
  bool keeps_gradients = false;  // Whether gradients can be read after a step.

  // Returns the index of a state in `states`, or -1.
  int Find(const UpdateState& state) const {
    const auto found = std::find(states.begin(), states.end(), state);
    return found == states.end() ? -1 : static_cast<int>(found - states.begin());
  }
  // Returns GroupState::host_weight of all groups.
  std::vector<Tensor> host_weights() const {
    std::vector<Tensor> weights;
    for (const GroupState& group : groups) weights.push_back(group.host_weight);
    return weights;
  }
  // Returns the groups that train, of which there is at least one.
  std::vector<GroupId> Trained() const {
    std::vector<GroupId> trained;
    for (GroupId group = 0; group < std::ssize(groups); ++group) {
      if (!groups[group].frozen) trained.push_back(group);
    }
    return trained;
  }
};

// Adds the persistent buffers to the program, and after them the buffers of gradients. Their order depends only on the
// model and the options, so all programs of a job have the same buffers. Call it before adding any other buffer.
// Returns InvalidArgument if a group has no valid layout (ShardLayout::Create).
absl::StatusOr<JobState> DeclareState(const ModelGraph& model, const StepOptions& options, ProgramWriter& writer);

}  // namespace shale
