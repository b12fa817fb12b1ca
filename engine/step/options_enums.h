// The choices that shape a training step, and the names that job files and reports give them.
#pragma once

#include "absl/strings/string_view.h"

namespace shale {

// What is sharded over the ranks; each strategy shards what the ones before it shard.
enum class Strategy {
  kNone,       // Nothing: data parallel (DDP).
  kOptimizer,  // Master weights and optimizer state (ZeRO-1).
  kGradients,  // Gradients (ZeRO-2).
  kFull,       // Parameters (ZeRO-3, FSDP).
};

// When gradients are reduced, over the micro-batches of one step.
enum class Schedule {
  kAuto,      // The compiler chooses among the others.
  kSharded,   // Every micro-batch, into a sharded accumulation buffer.
  kDeferred,  // On the last micro-batch, from gradients of the full model.
  kLayered,   // On the last micro-batch, unit by unit: all micro-batches run through a unit before the next unit.
};

// Which of the tensors that backward needs are computed again instead of kept.
enum class RetentionPreset {
  kKeepAll,      // None.
  kCheap,        // Norms and activation functions.
  kAttention,    // The attention sublayer, from its input.
  kFeedForward,  // The feed-forward sublayer, from its input.
  kSublayers,    // Both, each from its input.
  kBlock,        // The whole block, from its input.
};

// How the optimizer remembers more bits of a weight than the compute dtype has.
enum class MasterWeights {
  kFloat32,  // A second copy in fp32 (none when the compute dtype is fp32: the weight is its own master).
  kSplit,    // 16 low bits beside the bf16 weight.
};

inline absl::string_view ToString(Strategy strategy) {
  switch (strategy) {
    case Strategy::kNone: return "NONE";
    case Strategy::kOptimizer: return "OPTIMIZER";
    case Strategy::kGradients: return "GRADIENTS";
    case Strategy::kFull: return "FULL";
  }
  return "?";
}

inline absl::string_view ToString(Schedule schedule) {
  switch (schedule) {
    case Schedule::kAuto: return "AUTO";
    case Schedule::kSharded: return "SHARDED";
    case Schedule::kDeferred: return "DEFERRED";
    case Schedule::kLayered: return "LAYERED";
  }
  return "?";
}

inline absl::string_view ToString(RetentionPreset preset) {
  switch (preset) {
    case RetentionPreset::kKeepAll: return "KEEP_ALL";
    case RetentionPreset::kCheap: return "CHEAP";
    case RetentionPreset::kAttention: return "ATTENTION";
    case RetentionPreset::kFeedForward: return "FFN";
    case RetentionPreset::kSublayers: return "SUBLAYERS";
    case RetentionPreset::kBlock: return "BLOCK";
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
