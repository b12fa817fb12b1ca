// The state of a job: where each parameter group's weights, masters, optimizer states and gradients lie.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "engine/graph/graph.h"
#include "engine/step/options.h"
#include "engine/step/writer.h"
#include "sharding/placement.h"

namespace shale {

// The part of a group that one rank saves in a checkpoint (GroupPlacement::Saved). Absent tensors are not saved.
struct SavedTensors {
  Tensor value;                // f32: masters, or the weights of fp32 compute.
  Tensor high, low;            // bf16 weights and their low bits (SPLIT).
  std::vector<Tensor> states;  // Those of StepOptions::optimizer, in the order of its rule.
};

// One flat group. Tensors are symbolic in the program's buffers; absent ones do not exist under these options. "Own" is
// what this rank updates (GroupPlacement::Owned): its shard of the group, or the full group if nothing is sharded.
struct GroupState {
  GroupPlacement placement;
  Tensor own_weight;                  // Compute dtype. A view of full_weight, if there is one.
  Tensor full_weight;                 // Compute dtype; absent if it has to be gathered for each use.
  Tensor master;                      // f32; bf16 compute with fp32 masters.
  Tensor low;                         // i16; SPLIT.
  std::vector<Tensor> states;         // Of the optimizer, in the order of its rule.
  Tensor own_gradient;                // f32, read by the update. Persistent with StepOptions::keep_gradients only.
  Tensor full_gradient;               // f32; accumulates unsharded over the whole step. Absent: reduced unit by unit.
  std::vector<ElementRange> decayed;  // Elements of the group that decay.
  SavedTensors saved;                 // Views of the above.
  SavedTensors snapshot;              // A copy of `saved`; absent without StepOptions::snapshot.

  const ShardLayout& layout() const { return placement.layout(); }
  // The weights that this rank holds between steps (GroupPlacement::Weights).
  const Tensor& weights() const { return full_weight.present() ? full_weight : own_weight; }
};

struct JobState {
  std::vector<GroupState> groups;        // By GroupId.
  absl::Span<const UpdateState> states;  // Of the optimizer: what GroupState::states are.
  Tensor update_count;                   // i64[1], updates applied so far.
  Tensor totals;                         // f64[kTotalSize].
  bool keeps_gradients = false;          // Whether gradients can be read after a step.
};

// Adds the persistent buffers, in an order that depends on the model and the options only, so that all programs of a
// job agree on them, and after them the buffers of gradients. Must come before any other buffer.
absl::StatusOr<JobState> DeclareState(const ModelGraph& model, const StepOptions& options, ProgramWriter& writer);

}  // namespace shale
