// The forward and backward graph of a model, as data.
//
// A model is a list of units, run in order; a unit is what is gathered, run and freed together. A unit's graph holds
// values (storage) and nodes (ops on views of values); the backward nodes are derived from the forward ones when the
// graph is built. Symbols of a unit's tensors (Tensor::where) are indices into its `values`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace shale {

using ValueId = int;
using ParameterId = int;
using GroupId = int;

// What a parameter starts as.
struct Initializer {
  enum class Kind { kNormal, kOnes, kZeros };
  Kind kind = Kind::kNormal;
  double standard_deviation = 0;
  bool operator==(const Initializer&) const = default;
};

struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  Initializer initializer;
  GroupId group = -1;
  int64_t elements() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
};

// Parameters that lie in one flat vector and are gathered and reduced together.
struct ParameterGroup {
  std::string name;
  std::vector<ParameterId> parameters;
};

enum class ValueRole {
  kActivation,         // Written by forward nodes.
  kUnitInput,          // The previous unit's output.
  kGradient,           // Gradient of an activation, written by backward nodes.
  kOutputGradient,     // Gradient of the unit's output: the next unit's input gradient.
  kParameter,          // Gathered parameter `parameter`, in the compute dtype.
  kParameterGradient,  // Its gradient, f32.
  kInputs,             // Input tokens of the micro-batch, [B, S] i32.
  kTargets,            // Target tokens of the micro-batch, [B, S] i32, negative: not counted.
  kRows,               // Row of each sequence whose logits are wanted, [B] i32 (kLogits graphs).
  kLossScale,          // 1 / valid tokens of the global batch, f32.
  kLossTotal,          // Sum of the losses of the micro-batches so far, f64.
  kLogits,             // What a kLogits graph computes, [B, V].
};

// The part of a block that a value belongs to; retention presets speak of these.
enum class Sublayer { kNone, kAttention, kFeedForward };

struct Value {
  std::string name;
  ValueRole role = ValueRole::kActivation;
  Tensor tensor;  // The whole storage, contiguous.
  ParameterId parameter = -1;
  Sublayer sublayer = Sublayer::kNone;
  bool cheap = false;           // Norms and activation functions: little work to compute again.
  bool sublayer_input = false;  // The residual stream between a block's sublayers.
  std::vector<int> producers;   // Forward nodes that write it, in order; the later ones update it in place.
};

struct Node {
  Op op;
  // In forward. Computes the op's other outputs from its output `sum`, with the same bits: used when `sum` was kept.
  std::optional<Op> from_sum;
  // In backward. The op, and with it again one activation that is all its producer writes, with the same bits: used
  // when that was not kept and is wanted before this node's turn.
  std::optional<Op> recomputing;
};

struct UnitGraph {
  std::string name;
  int layer = -1;  // Index of the block; -1 for units that are not blocks.
  std::vector<Value> values;
  std::vector<Node> forward;
  std::vector<Node> backward;
  ValueId input = -1;            // kUnitInput; -1: the first unit.
  ValueId output = -1;           // An activation; -1: the last unit.
  ValueId output_gradient = -1;  // kOutputGradient; -1: the last unit, or no gradients.
  ValueId input_gradient = -1;   // kGradient; -1: the first unit, or no gradients.
};

// kTraining: forward, loss and gradients. kEvaluation: forward and loss. kLogits: forward, logits of one row a
// sequence.
enum class GraphMode { kTraining, kEvaluation, kLogits };

struct ModelGraph {
  GraphMode mode = GraphMode::kTraining;
  DType compute_dtype = DType::kFloat32;
  int64_t micro_batch = 0;      // Sequences, B.
  int64_t sequence_length = 0;  // Tokens, S.
  int64_t vocabulary = 0;
  bool last_target_only = false;  // Only the last position of a sequence has a target.
  std::vector<Parameter> parameters;
  std::vector<ParameterGroup> groups;
  std::vector<UnitGraph> units;
};

}  // namespace shale
