// The forward and backward graph of a model, as data, and what it wants of the model's data.
//
// A model is a list of units that run in order. The parameters of a unit are gathered together, used, and freed
// together. A unit's graph holds values (storage) and nodes (ops on views of values). GraphBuilder derives the backward
// nodes from the forward nodes. In the tensors of a unit, Tensor::where.symbol is an index into the unit's `values`.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/api/model.h"
#include "engine/compile/program/step_item.h"
#include "kernels/op.h"

namespace shale {

using ValueId = int;

// A flat group: parameters that lie in one flat vector and are gathered and reduced together. All of them train and are
// updated in the same way, or all are frozen and stored in the same way, and ops use all of them in one dtype.
struct ParameterGroup {
  std::string name;
  std::vector<ParameterId> parameters;
  DType dtype = DType::kFloat32;  // As Parameter::dtype, as are the members below.
  bool frozen = false;
  Storage storage = Storage::kAsUsed;
  int optimizer_group = -1;
  // Whether these are the matrices of blocks of a group that is divided (GraphOptions::divided_groups). They have two
  // dimensions, and only matmuls of blocks read them: no embedding, head, norm or bias.
  bool block_matrices = false;
  // Whether nothing reads these parameters but linear layers that multiply in fp8, with one scale for each matrix
  // ([Note: fp8 matmuls]). Graphs of logits have the same groups.
  bool float8 = false;
};

enum class ValueRole {
  kActivation,         // Written by forward nodes.
  kUnitInput,          // The previous unit's output.
  kGradient,           // Gradient of an activation or of the input, written by backward nodes or by the loss; or what
                       // backward nodes make of one for others (GradientBuilder::NewTemporary).
  kOutputGradient,     // Gradient of the unit's output: the next unit's input gradient.
  kParameter,          // A gathered parameter (Value::parameter), in its dtype.
  kParameterGradient,  // The gradient of a parameter, f32.
  kData,               // Data from the host (Value::item).
  kCache,              // Keys or values of the tokens so far (Cache), [C, G, P, D]. Keeps its contents between runs.
  kMeanFactor,         // 1 / valid tokens of the global batch, or 1 / sum of |weight|, f32.
  kLossTotal,          // Sum of the losses of the micro-batches so far, f64.
  kLogits,             // The result of a kLogits graph, [B, V].
};

// The part of a block that a value belongs to. Presets of activation checkpointing choose values by it.
enum class Sublayer { kNone, kAttention, kFeedForward };

struct Value {
  std::string name;
  ValueRole role = ValueRole::kActivation;
  Tensor tensor;                      // The full storage, contiguous.
  StepItem item = StepItem::kInputs;  // Of kData.
  ParameterId parameter = -1;
  Sublayer sublayer = Sublayer::kNone;
  bool cheap = false;           // The result of a norm or an activation function: cheap to recompute.
  bool sublayer_input = false;  // The residual stream between a block's sublayers.
  // Whether it is a parameter that trains, or an activation or a unit's input that depends on one. Only such values
  // have gradients.
  bool needs_gradient = false;
  std::vector<int> producers;  // Forward nodes that write it, in order. Later ones update it or write other parts.

  bool IsData(StepItem which) const { return role == ValueRole::kData && item == which; }
};

struct Node {
  Op op;
  // Forward nodes only. Recomputes the other outputs of `op` from its output `sum`, with the same bits. The step
  // compiler uses it if `sum` was kept.
  std::optional<Op> from_sum;
  // Backward nodes only. A fused op: it does what `op` does and also recomputes one activation, with the same bits. The
  // activation is the only output of its producer. If it was not kept and an earlier backward node reads it, the step
  // compiler runs this node before that one, and with this op.
  std::optional<Op> recomputing;
};

struct UnitGraph {
  std::string name;
  int layer = -1;  // Index of the block; -1 for units that are not blocks.
  std::vector<Value> values;
  std::vector<Node> forward;
  std::vector<Node> backward;
  ValueId input = -1;            // A kUnitInput. -1 in the first unit.
  ValueId output = -1;           // A kActivation. -1 in the last unit.
  ValueId output_gradient = -1;  // A kOutputGradient. -1 in the last unit, or if the output needs no gradient.
  ValueId input_gradient = -1;   // A kGradient. -1 in the first unit, or if the input needs no gradient.
};

// [Note: frozen parameters] GraphOptions::train_only says which parameters train; the others are frozen. The builder
// decides it once, when a parameter is added, and models need not know of it. A value needs a gradient if it depends on
// a parameter that trains. Only such values get one, so a unit that lies below the lowest parameter that trains has no
// backward at all, and what frozen parameters alone compute has none either. Finish divides each group that holds both
// kinds into two flat groups, since frozen weights have no gradient, master or optimizer state, and are never reduced.
// GraphOptions::frozen_weights says how they are stored; those that are stored otherwise than they are used have a flat
// group of their own, too, whose gathered weights are widened before each use (engine/compile/graph/storage.h).
//
// [Note: dtypes] Each tensor has a dtype of its own. A parameter gets one when it is added: the compute dtype, or fp32.
// Layers compute in the dtype of what they read, and Cast goes from one to another. The check of an op says which
// dtypes go together in it (kernels/op_checker.h), and Ops::CheckAvailable which of these a device has kernels for.
// Finish divides groups by dtype, so that a flat group has one.
//
// [Note: groups of the optimizer] GraphOptions::optimizer_groups divides the parameters that train by their names, and
// Finish divides flat groups in the same way. So a flat group has one update rule, with one learning rate, weight decay
// and set of states, and what the step compiler emits for a flat group need not look at its parameters, unless its
// optimizer is composed. A rule of matrices, such as Muon, leaves other parameters to another rule:
// GraphOptions::divided_groups names its groups.

// [Note: fp8 matmuls] With GraphOptions::float8_matmuls, a linear layer of a block (Linear) multiplies matrices in fp8.
// Each has one scale, which is computed from its largest magnitude whenever the matrix is quantized
// (kernels/ops/float8.h), so there is no state. Inputs and weights are in e4m3, and gradients in
// GraphOptions::float8_gradients. All other tensors stay as they are.
//
// A matmul in fp8 wants both operands with the dimension that it sums over last. So forward quantizes the input as it
// lies for itself, and transposed for the gradient of the weight. Backward finds the transposed one, with one byte for
// each element, and does not need the input. It quantizes the weight again, transposed, because keeping that would take
// memory in all layers at once.
//
// Norms, activation functions and the gradients of RoPE write matrices that only the ops which quantize read. These
// compute such a matrix themselves, from what its own op would read, and it is neither written nor read
// (UseFloat8Sources). So forward has no SwiGluForward, and a norm writes its statistics alone.
//
// That is the plain program. Passes change where weights are quantized, and no bits (engine/compile/step/passes.h).
// Where ranks gather a weight for each use, each quantizes its shard once a step and they gather codes (GatherFloat8):
// so these weights have flat groups of their own (ParameterGroup::float8), which nothing else reads. Where a rank holds
// the whole weight, it may quantize that once for all micro-batches (QuantizeOnce).
//
// With GraphOptions::float8_blockwise, matrices have many scales: inputs and gradients one for each tile of 128
// elements along the dimension that the matmul sums over, and weights one for each block of 128 x 128 (kernels/
// float8_scales.h). So inputs and gradients are quantized along each dimension by itself, and the transposed codes are
// other numbers, while those of a weight are the same. A part's maximum is found where it is quantized. Blocks would
// cross the bounds of shards, so such weights are gathered as they are stored, and GatherFloat8 finds none.
//
// A graph of logits multiplies in the compute dtype. To quantize a weight it must be read twice, which costs more than
// fp8 saves for a few tokens, and a sequence would depend on the tokens that are computed beside it.

// What a graph computes. kTraining: the loss and all gradients. kEvaluation: the loss. kLogits: the logits of one row
// per sequence.
enum class GraphMode { kTraining, kEvaluation, kLogits };

// The cache of a graph of logits that computes the next tokens of sequences, and finds the keys and values of the
// tokens before them in persistent buffers. All graphs that share these buffers have the same Cache.
struct Cache {
  int64_t positions = 0;      // Tokens that a sequence may have. 0: there is no cache.
  int64_t longest_chunk = 0;  // The largest sequence_length of the graphs.
  int64_t sequences = 1;      // C. A graph has as many, or one whose tokens are those of all (CachedAttention).
  bool operator==(const Cache&) const = default;
};

struct ModelGraph {
  GraphMode mode = GraphMode::kTraining;
  int64_t micro_batch = 0;      // B, in sequences.
  int64_t sequence_length = 0;  // S, in tokens. With a cache: the new tokens of a run.
  Cache cache;
  int64_t vocabulary = 0;
  // kLogits: the soft cap that the reader of the logits applies (one row per sequence, on the host); 0: none.
  double logit_cap = 0;
  bool last_target_only = false;  // Only the last position of a sequence has a target.
  TargetWeights target_weights = TargetWeights::kNone;
  bool position_ids = false;  // Sequences hold several documents.
  std::vector<Parameter> parameters;
  std::vector<ParameterGroup> groups;
  std::vector<UnitGraph> units;

  // Returns the value that holds the result. REQUIRES: mode is kLogits.
  const Value& logits() const;
};

struct DataNeeds {
  int64_t input_ids = 0;   // Input tokens must lie below it: the rows of the smallest table that is indexed by them.
  int64_t target_ids = 0;  // Target tokens or classes must lie below it: the columns of the logits.
  bool last_target_only = false;
  // By StepItem: the elements of a position, 0 of what the graph does not need. It needs what it reads, and the target
  // weights and position ids that GraphOptions asks for.
  std::array<int64_t, kStepItems> elements = {};

  int64_t ElementsOf(StepItem item) const { return elements[static_cast<size_t>(item)]; }
};

// Lets AbsMax and QuantizeFloat8 compute the matrices that they read ([Note: sources of fp8] in kernels/ops/float8.h):
// results of norms, SwiGLU, GELU, and of the gradients of these two and of RoPE, that nothing else reads. Drops these
// results, and ops that have no others. Changes no bits, because a source rounds its numbers as the op does. Not with
// f32, because matmuls in fp8 read none.
//
// Some gradients are written, because others read them: where a layer has a bias, its gradient sums up that of the
// layer's output (queries and keys in Qwen 2, what GELU reads in GPT-2). Where queries and keys have norms (Qwen 3,
// Gemma 3), RoPE writes what the gradient of the norm reads, and this op writes what is quantized. It is no source:
// with one, each read of d_x would become reads of d_y and x, which are as many bytes as d_x written and read, or more.
//
// Backward keeps no more than without it. Where it computes the fp8 form of an activation again, it reads what that is
// computed from. So a matrix is left alone if backward wants its fp8 form and does not read all of that anyway.
// While one block runs backward it may take more, at most the bytes of d_y of the activation function: without a source
// its gradient is written over what it has read, in whose place fp8 forms do not fit.
void UseFloat8Sources(UnitGraph& unit);

// Whether a builder calls UseFloat8Sources. All of them do, except in tests that compare the two.
enum class Float8Sources { kUsed, kNotUsed };

// Returns the needs of a graph of mode kTraining or kEvaluation.
DataNeeds NeedsOf(const ModelGraph& graph);

}  // namespace shale
