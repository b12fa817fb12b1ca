// GraphBuilder: builds the graph of a model.
//
//   GraphBuilder b(options);
//   GroupId group = b.AddGroup("blocks.0");
//   ParameterId w = b.AddParameter(group, "blocks.0.up.weight", {F, C}, {Initializer::Kind::kNormal, 0.02});
//   b.BeginUnit("blocks.0", 0);
//   Tensor y = Linear(b, b.UnitInput(), w, std::nullopt, "up");     // layers.h
//   b.EndUnit(y);
//   StatusOr<ModelGraph> graph = b.Finish();
//
// Layers (layers.h) emit forward ops and register, with OnBackward, the rule that emits their gradients. EndUnit and
// EndLastUnit run the rules in reverse order.
//
// A misuse does not abort the program: Finish returns the first one as InvalidArgument, which names it. Misuses are,
// for example, shapes that do not fit, a unit without an end, a unit that does not depend on its input, a tensor of
// another unit or of another builder, a parameter that no unit uses or that the loss does not depend on, a pattern of
// train_only that matches no parameter, no loss, and a second loss. Two things do abort: a call that breaks what a
// function REQUIRES, and a view that Tensor itself makes (Slice, Reshape) and that does not fit. The views of layers.h
// do not.
//
// Not thread-safe. Several builders may exist at once.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/compile/graph/graph.h"

namespace shale {

struct DecoderConfig;
class GradientBuilder;
struct QuantizeFloat8;

struct GraphOptions {
  GraphMode mode = GraphMode::kTraining;
  DType compute_dtype = DType::kFloat32;  // Of parameters and data that name no other dtype ([Note: dtypes]).
  int64_t micro_batch = 1;                // In sequences.
  int64_t sequence_length = 1;            // In tokens.
  int64_t vocabulary = 0;                 // In tokens. 0: there is none, or it is not known.
  int64_t loss_chunk_tokens = 512;        // Rows of logits that exist at once.
  bool last_target_only = false;          // Only the last position of a sequence has a target.
  TargetWeights target_weights = TargetWeights::kNone;
  bool position_ids = false;  // Sequences hold several documents ([Note: position ids] in kernels/ops/attention.h).
  Cache cache;                // Only with kLogits, and without position_ids.
  bool padding = false;       // Sequences may end in padding, which no other token may see.
  // Name patterns (engine/strings/pattern.h) of the parameters that train. Empty: all. See [Note: frozen parameters].
  std::vector<std::string> train_only;
  Storage frozen_weights = Storage::kAsUsed;  // How frozen parameters are stored.
  // Whether the head's matmul writes its fp32 sums as the logits, which are otherwise rounded to the dtype of its
  // input.
  bool fp32_logits = false;
  // Whether linear layers of blocks multiply in fp8, and the format in which they do so with gradients ([Note: fp8
  // matmuls]).
  bool float8_matmuls = false;
  DType float8_gradients = DType::kFloat8E5M2;
  // Whether tiles and blocks of these matrices have scales of their own ([Note: blockwise scales] in
  // kernels/float8_scales.h), instead of one scale for each matrix.
  bool float8_blockwise = false;
  // For each group of the optimizer, the name patterns of its parameters, which are updated by settings of their own. A
  // parameter belongs to the first group with a pattern that matches its name. See [Note: groups of the optimizer].
  std::vector<std::vector<std::string>> optimizer_groups;
  // The groups of the optimizer, -1 for parameters in none, that update matrices of blocks in another way than their
  // other parameters. Flat groups are then divided between the two (ParameterGroup::block_matrices).
  std::vector<int> divided_groups;

  bool operator==(const GraphOptions&) const = default;
};

class GraphBuilder {
 public:
  explicit GraphBuilder(const GraphOptions& options);

  const GraphOptions& options() const { return options_; }
  // Returns the number of tokens of a micro-batch.
  int64_t tokens() const { return options_.micro_batch * options_.sequence_length; }

  // Add a flat group, and a parameter to a group. The parameters of a flat group lie in one vector, of which each rank
  // owns a shard. Finish divides a group whose parameters are not stored, used and updated alike. A parameter that two
  // units use (a tied head) belongs to one group. Names of parameters must be unique: checkpoints record them, and name
  // patterns of jobs match them. Ops use the parameter in `dtype`, by default the compute dtype; only fp32 may be given
  // in its place.
  GroupId AddGroup(std::string name);
  ParameterId AddParameter(GroupId group, std::string name, std::vector<int64_t> shape, Initializer initializer,
                           std::optional<DType> dtype = std::nullopt);
  const Parameter& parameter(ParameterId id) const { return graph_.parameters[id]; }

  // Begin and end units, in the order in which they run. `layer` is the index of a block, from 0 on, or -1 for a unit
  // that is no block. Presets of activation checkpointing apply to blocks.
  void BeginUnit(std::string name, int layer = -1);
  Tensor UnitInput();                  // Returns the output of the previous unit, in the shape in which it was created.
  void EndUnit(const Tensor& output);  // `output` must be a full activation, not a view of a part of it.
  void EndLastUnit();                  // Ends a unit without output: the one with the loss.

  // Returns the finished graph, or the first error. The builder must not be used afterwards.
  absl::StatusOr<ModelGraph> Finish();

  // The functions below are for layers. Tensors are symbolic and belong to the current unit.

  // Returns `tensor` if it belongs to the current unit and has `rank` dimensions. Otherwise records an error, in which
  // `user` is the name of the layer, and returns a new activation of that rank, so that the layer can go on.
  Tensor Operand(const Tensor& tensor, int rank, absl::string_view user);
  // Returns a new activation of the current unit. `cheap` says that it is cheap to recompute (Value::cheap).
  Tensor NewActivation(absl::string_view name, DType dtype, std::initializer_list<int64_t> shape, bool cheap = false);
  Tensor UseParameter(ParameterId id);
  // Returns a new kCache, [C, G, P, D], with C = cache.sequences, G = `groups` and D = `width`. P is cache.positions,
  // or less if each token sees only the last `window` > 0 tokens and fewer rows hold these. REQUIRES: there is a cache.
  Tensor NewCache(absl::string_view name, DType dtype, int64_t groups, int64_t width, int64_t window);
  // Return data from the host, whose dtype and shape are in its row of engine/compile/program/step_item.h. UseData
  // REQUIRES an item of the shape kTokens or kSequences. UseColumns REQUIRES one of the shape kColumns, and returns [T,
  // columns]; all units must use the same number of columns of it.
  Tensor UseData(StepItem item);
  Tensor UseColumns(StepItem item, int64_t columns);
  Tensor UseScalar(ValueRole role);                             // REQUIRES: kMeanFactor or kLossTotal.
  Tensor UseLogits(DType dtype);                                // Returns where a kLogits graph writes its result.
  void Emit(Op op, std::optional<Op> from_sum = std::nullopt);  // See Node for `from_sum`.
  // Registers a gradient rule. Does nothing unless the mode is kTraining.
  void OnBackward(std::function<void(GradientBuilder&)> rule);
  // Sets the sublayer of the activations that are created from now on.
  void SetSublayer(Sublayer sublayer) { sublayer_ = sublayer; }
  void MarkSublayerInput(const Tensor& tensor);
  // Says that whoever reads the logits applies this soft cap (ModelGraph::logit_cap). Only in a kLogits graph.
  void SetLogitCap(double cap) { graph_.logit_cap = cap; }
  // Returns whether a value needs a gradient: whether it depends on a parameter that trains. Data does not. Gradient
  // rules do not compute gradients that are not needed.
  bool NeedsGradient(const Tensor& value);
  // Returns the gradient of a parameter, or an absent tensor if the parameter is frozen. Ops write it with `accumulate`
  // unset; the step compiler sets it as needed. REQUIRES: UseParameter returned `parameter`.
  Tensor ParameterGradient(const Tensor& parameter);
  // Returns a new gradient with the shape of `value`, not yet written.
  Tensor NewGradient(const Tensor& value);
  // Returns whether linear layer `name` of the current unit multiplies in fp8. Records an error if it should and a size
  // does not allow it: the numbers of inputs and outputs must be multiples of kFloat8Multiple. `rows` says whether a
  // matmul sums over the rows of x, whose number must then be such a multiple, too. Otherwise only blockwise scales
  // need a multiple there, of kFloat8RowMultiple.
  bool MultipliesInFloat8(const Tensor& x_TK, const Tensor& weight_NK, bool rows, absl::string_view name);
  // Returns the forward op of the current unit that has quantized `x` as it is now, or null if there is none.
  // `transposed` says that the op must have written the transposed codes, too. The pointer is valid until the next op
  // is emitted.
  const QuantizeFloat8* FindQuantized(const Tensor& x, bool transposed);

  // Records an error. Finish returns the first one. The builder can still be used after an error.
  void Fail(absl::Status status);

 private:
  friend class GradientBuilder;
  friend absl::StatusOr<ModelGraph> BuildDecoder(const DecoderConfig& config, GraphOptions options,
                                                 Float8Sources sources);
  GraphBuilder(const GraphOptions& options, Float8Sources sources);
  // Calls Fail if the op is not valid. The message begins with `where` and the unit's name.
  void Check(const Op& op, absl::string_view where);
  ValueId AddGradientValue(ValueId of);
  ValueId AddValue(Value value);
  // Returns the value of this role, or of this data, in the current unit, or -1 if there is none.
  ValueId Find(ValueRole role, StepItem item = StepItem::kInputs);
  // Returns the current unit. Outside of a unit, records an error and returns a unit that is not part of the graph.
  UnitGraph& unit();
  Tensor View(ValueId id);
  void CloseUnit();
  // Emits the backward nodes of the current unit.
  void EmitBackward();
  // Returns whether a tensor belongs to the current unit.
  bool IsOwn(const Tensor& tensor);
  // Returns, for messages, the owner of a tensor that the current unit must not use.
  std::string DescribeForeign(const Tensor& tensor) const;
  // Records an error for an op of the current unit that uses a tensor of another unit.
  void CheckOwnership(const Op& op);
  // Check the finished graph. Record an error for each unit, group or parameter that is not used as it must be.
  void CheckResult();
  void CheckParameters();
  void CheckOptimizerGroups();
  // Decides how frozen parameters are stored. Records an error if the compute dtype does not allow the wanted form.
  void DecideStorage();
  // Returns, by parameter, whether only matmuls in blocks read it, as their right operand.
  std::vector<bool> MatricesOfBlocks() const;
  // Returns, of the matrices of blocks, those that belong in a ParameterGroup::float8. Both are by parameter.
  std::vector<bool> Float8Weights(std::vector<bool> weights) const;
  // Divides each group by what trains, by dtype, by group of the optimizer, by how weights are stored, and by whether
  // they are multiplied in fp8.
  void SplitGroups();

  GraphOptions options_;
  const Float8Sources float8_sources_;
  ModelGraph graph_;
  absl::Status status_;
  bool in_unit_ = false;
  UnitGraph outside_;  // What unit() returns outside of a unit.
  // [Note: the mark of a unit] While a unit is built, its tensors hold its mark in Location::unit_mark. Units have
  // different marks, also those of different builders. CloseUnit removes it.
  uint32_t mark_ = 0;                 // Of the current unit, or of what stands outside of units.
  uint32_t outside_mark_ = 0;         // The mark of what stands outside of units.
  std::vector<uint32_t> unit_marks_;  // By unit.
  int next_layer_ = 0;
  std::vector<size_t> results_;  // For each op that writes the result of the graph, the index of its unit.
  Sublayer sublayer_ = Sublayer::kNone;
  std::vector<std::function<void(GradientBuilder&)>> rules_;
  std::unordered_set<std::string> parameter_names_, unit_names_;
  std::unordered_set<ParameterId> float8_weights_;  // Weights that a layer multiplies in fp8, or would in other modes.
};

// Emits the backward nodes of one unit. Keeps one gradient per value: the gradients of several uses are added.
class GradientBuilder {
 public:
  explicit GradientBuilder(GraphBuilder& builder) : builder_(builder), gradients_(builder.unit().values.size(), -1) {}

  // Returns whether a later op contributed a gradient to the value. A rule whose output has no gradient emits nothing.
  bool HasGradient(const Tensor& value) const;
  // Returns the gradient of `value`, seen through the same view. REQUIRES: HasGradient(value).
  Tensor Gradient(const Tensor& value) const;
  // Returns the gradient of `value`, if it has one, and removes it. Rules call it to add the gradient so far to the one
  // that they contribute.
  std::optional<Tensor> TakeGradient(const Tensor& value);
  // Adds a finished gradient of a whole value, not of a view. Does nothing if the value needs none. The tensor may also
  // be the gradient of another value (an addition passes its gradient on), so no op may update it in place.
  void Contribute(const Tensor& value, const Tensor& gradient);
  // Returns the gradient storage of a value that is read through views (packed Q, K, V), seen through the view `value`.
  // The rules that call this write or update disjoint views, which together cover the storage.
  Tensor GradientStorage(const Tensor& value);
  Tensor NewGradient(const Tensor& value) { return builder_.NewGradient(value); }
  // Returns a tensor that only backward nodes of the unit use, not yet written.
  Tensor NewTemporary(absl::string_view name, DType dtype, std::initializer_list<int64_t> shape);
  bool NeedsGradient(const Tensor& value) const { return builder_.NeedsGradient(value); }
  Tensor ParameterGradient(const Tensor& parameter) { return builder_.ParameterGradient(parameter); }
  // Appends a backward node. See Node for `recomputing`.
  void Emit(Op op, std::optional<Op> recomputing = std::nullopt);

 private:
  GraphBuilder& builder_;
  std::vector<ValueId> gradients_;  // By ValueId; -1: none yet.
};

}  // namespace shale
