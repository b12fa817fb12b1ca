// The choices that shape a training step, the names that job files and reports give them, and which of them go
// together.
//
// ChosenBlocks: the blocks of a model that activation checkpointing applies to. Segment: some of them in a row that
// keep one boundary together.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "sharding/mesh.h"
#include "sharding/placement.h"

namespace shale {

// Says when gradients, which accumulate over the micro-batches of a step, are reduced over the ranks.
enum class Accumulation {
  kAuto,     // The planner chooses one of the others.
  kSharded,  // Every micro-batch, into a sharded accumulation buffer.
  kNoSync,   // On the last micro-batch, from unsharded gradients of the full model.
  kLayered,  // Once a step, unit by unit: all micro-batches run through a unit before the next unit.
};

// Activation checkpointing: which of the tensors that backward needs are recomputed instead of kept.
enum class CheckpointingPreset {
  kNone,         // No tensors.
  kCheap,        // Norms and activation functions.
  kAttention,    // The attention sublayer, from its input.
  kFeedForward,  // The feed-forward sublayer, from its input.
  kSublayers,    // Both sublayers, each from its input.
  kBlock,        // The whole block, from its input.
};

// Consecutive blocks of a model.
struct Segment {
  int64_t first = 0;  // Index of the first block.
  int64_t blocks = 0;
  bool operator==(const Segment&) const = default;
};

// The blocks that a preset applies to. If first_layers + last_layers > 0, these are the first `first_layers` and the
// last `last_layers` blocks of the model. Otherwise they are blocks 0, n, 2n, and so on for n = every_nth.
struct ChosenBlocks {
  int64_t layers = 0;  // Number of blocks in the model.
  int64_t every_nth = 1;
  int64_t first_layers = 0;
  int64_t last_layers = 0;

  bool Includes(int64_t layer) const;
  // Returns the number of blocks in the longest run of consecutive chosen blocks. No segment is longer.
  int64_t LongestRun() const;
};

// Divides each run of consecutive chosen blocks into segments of `segment_blocks` blocks. The last segment of a run may
// be shorter. A segment keeps one boundary from forward to backward, the input of its first block. Before its backward,
// all its blocks but the last run forward again (Chen et al., 2016: O(sqrt L) boundaries for L blocks). Returns no
// segments if segment_blocks is 1: each block then keeps its own input and what the preset keeps.
std::vector<Segment> SegmentsOf(const ChosenBlocks& chosen, int64_t segment_blocks);

// Returns the largest number of boundaries of chosen blocks that are held at once: one for each segment, and those
// between the blocks of the longest segment. If segment_blocks is 1, this is one for each chosen block.
int64_t BoundariesHeld(const ChosenBlocks& chosen, int64_t segment_blocks);

// Returns the segment_blocks, at least 2, with the smallest BoundariesHeld. It is about the square root of the number
// of chosen blocks; among equals, the value nearest to that root is taken. REQUIRES: chosen.LongestRun() >= 2.
int64_t SqrtSegmentBlocks(const ChosenBlocks& chosen);

// Where the optimizer keeps the bits of a weight that the compute dtype has no room for.
enum class MasterWeights {
  kFloat32,  // In a second copy in fp32 (none if the compute dtype is fp32: the weight is its own master).
  kSplit,    // In 16 low bits beside the bf16 weight.
  kNone,     // Nowhere: the update rounds the bf16 weight stochastically. Only with bf16 compute.
};

// Which parts of a rank's state lie in its host memory instead of the arena.
struct StateOffload {
  bool moments = false;     // The optimizer's states.
  bool masters = false;     // fp32 masters, or the low bits of SPLIT.
  bool parameters = false;  // The rank's shard of the weights. Only with Strategy::kFullShard.

  bool any() const { return moments || masters || parameters; }
  bool operator==(const StateOffload&) const = default;
};

// Where the update of the parameters runs.
enum class UpdateDevice {
  kSame,  // On the device that computes everything else.
  kHost,  // On the host, where masters and moments then stay (engine/compile/step/passes.h).
};

// When parameters are updated.
enum class UpdateTime {
  kAfterBackward,  // After the backward of all units.
  kInBackward,     // Those of a unit as soon as their gradients are complete, which need no memory afterwards.
};

// Which gradients share a norm that clipping limits.
enum class Clipping {
  kGlobal,   // All gradients.
  kPerUnit,  // The gradients of one flat group, which are those of a unit or of units that share parameters.
  // All gradients, but the norm is that of the step before, which is known before a unit is updated.
  kPreviousNorm,
};

inline absl::string_view ToString(Accumulation accumulation) {
  switch (accumulation) {
    case Accumulation::kAuto: return "AUTO";
    case Accumulation::kSharded: return "SHARDED";
    case Accumulation::kNoSync: return "NO_SYNC";
    case Accumulation::kLayered: return "LAYERED";
  }
  return "?";
}

inline absl::string_view ToString(CheckpointingPreset preset) {
  switch (preset) {
    case CheckpointingPreset::kNone: return "NONE";
    case CheckpointingPreset::kCheap: return "CHEAP";
    case CheckpointingPreset::kAttention: return "ATTENTION";
    case CheckpointingPreset::kFeedForward: return "FFN";
    case CheckpointingPreset::kSublayers: return "SUBLAYERS";
    case CheckpointingPreset::kBlock: return "BLOCK";
  }
  return "?";
}

inline absl::string_view ToString(UpdateTime update) {
  switch (update) {
    case UpdateTime::kAfterBackward: return "AFTER_BACKWARD";
    case UpdateTime::kInBackward: return "IN_BACKWARD";
  }
  return "?";
}

inline absl::string_view ToString(UpdateDevice device) {
  switch (device) {
    case UpdateDevice::kSame: return "SAME";
    case UpdateDevice::kHost: return "HOST";
  }
  return "?";
}

inline absl::string_view ToString(Clipping clipping) {
  switch (clipping) {
    case Clipping::kGlobal: return "GLOBAL";
    case Clipping::kPerUnit: return "PER_UNIT";
    case Clipping::kPreviousNorm: return "PREVIOUS_NORM";
  }
  return "?";
}

// Returns the names of the parts, for example "MOMENTS, MASTERS"; "" if there are none.
inline std::string ToString(const StateOffload& offload) {
  std::string names;
  const auto add = [&](bool part, absl::string_view name) {
    if (part) absl::StrAppend(&names, names.empty() ? "" : ", ", name);
  };
  add(offload.moments, "MOMENTS");
  add(offload.masters, "MASTERS");
  add(offload.parameters, "PARAMETERS");
  return names;
}

inline absl::string_view ToString(MasterWeights master) {
  switch (master) {
    case MasterWeights::kFloat32: return "MASTER_FP32";
    case MasterWeights::kSplit: return "SPLIT";
    case MasterWeights::kNone: return "NONE";
  }
  return "?";
}

// Returns InvalidArgument if the accumulation does not exist for the strategy. The message names the strategy that has
// it:
//   DDP or ZERO1 with SHARDED: use ZERO2.
//   ZERO2 with NO_SYNC: use ZERO1.
// AUTO goes with every strategy.
absl::Status CheckCombination(Strategy strategy, Accumulation accumulation);

// Returns OK if the sums of gradients can be stored in bf16, otherwise InvalidArgument with what to choose. They can if
// backward does not write to them: not where a rank holds full gradients in fp32 anyway. AUTO goes if any accumulation
// does.
absl::Status CheckGradientShards(Strategy strategy, Accumulation accumulation, const Mesh& mesh);

// Returns OK if gradients can leave a rank in bf16, otherwise InvalidArgument with what to choose. They can if each
// rank updates a part of the state, to which the others send their gradients, and if there is one rank, which sends
// none.
absl::Status CheckReduce(Strategy strategy, const Mesh& mesh);

// Returns OK if a job can offload these parts of its state, otherwise InvalidArgument. `has_moments` says whether its
// optimizer keeps states, and `has_masters` whether its weights have masters or low bits. Parameters need FULL_SHARD.
absl::Status CheckStateOffload(const StateOffload& offload, Strategy strategy, bool has_moments, bool has_masters);

// Returns InvalidArgument if `offload` names a part of the state that an update on `device` keeps in host memory
// anyway.
absl::Status CheckUpdateDevice(UpdateDevice device, const StateOffload& offload);

}  // namespace shale
