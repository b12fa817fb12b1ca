// The choices that shape a training step, and the names that job files and reports give them.
#pragma once

#include "absl/strings/string_view.h"
#include "sharding/placement.h"

namespace shale {

// How gradients accumulate over the micro-batches of one step: when they are reduced.
enum class Accumulation {
  kAuto,     // The compiler chooses among the others.
  kSharded,  // Every micro-batch, into a sharded accumulation buffer.
  kNoSync,   // On the last micro-batch, from gradients of the full model.
  kLayered,  // On the last micro-batch, unit by unit: all micro-batches run through a unit before the next unit.
};

// Activation checkpointing: which of the tensors that backward needs are recomputed instead of kept.
enum class CheckpointingPreset {
  kNone,         // None.
  kCheap,        // Norms and activation functions.
  kAttention,    // The attention sublayer, from its input.
  kFeedForward,  // The feed-forward sublayer, from its input.
  kSublayers,    // Both, each from its input.
  kBlock,        // The whole block, from its input.
};

// Activation checkpointing: how many blocks a segment has (engine/step/segments.h).
enum class Segments {
  kGiven,  // As many as the job says, 1 by default.
  kSqrt,   // About the square root of the number of chosen blocks.
};

// How the optimizer remembers more bits of a weight than the compute dtype has.
enum class MasterWeights {
  kFloat32,  // A second copy in fp32 (none when the compute dtype is fp32: the weight is its own master).
  kSplit,    // 16 low bits beside the bf16 weight.
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

inline absl::string_view ToString(MasterWeights master) {
  switch (master) {
    case MasterWeights::kFloat32: return "MASTER_FP32";
    case MasterWeights::kSplit: return "SPLIT";
  }
  return "?";
}

}  // namespace shale
