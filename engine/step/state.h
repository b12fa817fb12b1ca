// The persistent state of a job: where each parameter group's weights, masters, moments and gradients lie.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "engine/graph/graph.h"
#include "engine/step/options.h"
#include "engine/step/writer.h"
#include "sharding/shard_layout.h"

namespace shale {

// What a checkpoint saves of a group on one rank: a slice of it, in all strategies, so that the ranks together save
// every element once. Absent tensors are not saved.
struct SavedTensors {
  Tensor value;      // f32: masters, or the weights of fp32 compute.
  Tensor high, low;  // bf16 weights and their low bits (SPLIT).
  Tensor m, v;       // f32.
};

// One flat group. Tensors are symbolic in the program's buffers; absent ones do not exist under these options. "Own" is
// what this rank updates: its slice of the group, or all of it when nothing is sharded (NONE) or there is one rank.
struct GroupState {
  ShardLayout layout;
  Tensor own_weight;                  // Compute dtype. In a replicated group a view of full_weight.
  Tensor full_weight;                 // Compute dtype; absent when it has to be gathered (FULL on several ranks).
  Tensor master;                      // f32; bf16 compute with fp32 masters.
  Tensor low;                         // i16; SPLIT.
  Tensor m, v;                        // f32.
  Tensor own_gradient;                // f32, what AdamW reads.
  Tensor full_gradient;               // f32; accumulates unsharded over the whole step. Absent: reduced unit by unit.
  std::vector<ElementRange> decayed;  // Elements of the group that decay.
  SavedTensors saved;                 // Views of the above.
  SavedTensors snapshot;              // A copy of `saved`; absent without StepOptions::snapshot.
};

struct JobState {
  std::vector<GroupState> groups;  // By GroupId.
  Tensor update_count;             // i64[1], updates applied so far.
  Tensor totals;                   // f64[kTotalSize].
};

// Adds the persistent buffers, in an order that depends on the model and the options only, so that all programs of a
// job agree on them. Must come before any other buffer.
absl::StatusOr<JobState> DeclareState(const ModelGraph& model, const StepOptions& options, ProgramWriter& writer);

// The slice that a rank owns of a whole group's vector.
Tensor OwnSlice(const Tensor& full, const ShardLayout& layout);

// Whether gradients accumulate unsharded over the step.
bool AccumulatesUnsharded(const StepOptions& options);
// Whether the parameters have to be gathered for use.
bool GathersParameters(const StepOptions& options);

}  // namespace shale
