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
// EndLastUnit run the rules in reverse order. Finish returns the first error, for example a shape that does not fit.
// Not thread-safe.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/graph/graph.h"

namespace shale {

class GradientBuilder;

struct GraphOptions {
  GraphMode mode = GraphMode::kTraining;
  DType compute_dtype = DType::kFloat32;
  int64_t micro_batch = 1;      // In sequences.
  int64_t sequence_length = 1;  // In tokens.
  int64_t vocabulary = 0;
  int64_t loss_chunk_tokens = 512;  // Rows of logits that exist at once.
  bool last_target_only = false;    // Only the last position of a sequence has a target.
  TargetWeights target_weights = TargetWeights::kNone;
};

class GraphBuilder {
 public:
  explicit GraphBuilder(const GraphOptions& options);

  const GraphOptions& options() const { return options_; }
  int64_t tokens() const { return options_.micro_batch * options_.sequence_length; }

  // Add a flat group, and a parameter to a group. A parameter that two units use (a tied head) belongs to one group.
  GroupId AddGroup(std::string name);
  ParameterId AddParameter(GroupId group, std::string name, std::vector<int64_t> shape, Initializer initializer);
  const Parameter& parameter(ParameterId id) const { return graph_.parameters[id]; }

  // Begin and end units, in the order in which they run. `layer` is the index of the block, -1 if the unit is not one.
  void BeginUnit(std::string name, int layer = -1);
  Tensor UnitInput();                  // Returns the output of the previous unit, with the same shape.
  void EndUnit(const Tensor& output);  // `output` must be a full activation, not a view of a part of it.
  void EndLastUnit();                  // Ends a unit without output: the one with the loss.

  // Returns the finished graph, or the first error. The builder must not be used afterwards.
  absl::StatusOr<ModelGraph> Finish();

  // The functions below are for layers. Tensors are symbolic and belong to the current unit.
  Tensor NewActivation(absl::string_view name, DType dtype, std::initializer_list<int64_t> shape, bool cheap = false);
  Tensor UseParameter(ParameterId id);
  // Returns kFeatures or kTargetValues of `width` columns, [T, width] f32. All uses in a model have the same width.
  Tensor UseRows(ValueRole role, int64_t width);
  Tensor UseData(ValueRole role);                               // Any other role that is data of the step.
  void Emit(Op op, std::optional<Op> from_sum = std::nullopt);  // See Node for `from_sum`.
  // Registers a gradient rule. Does nothing unless the mode is kTraining.
  void OnBackward(std::function<void(GradientBuilder&)> rule);
  // Sets the sublayer of the activations that are created from now on.
  void SetSublayer(Sublayer sublayer) { sublayer_ = sublayer; }
  void MarkSublayerInput(const Tensor& tensor);
  // Says that an activation is a copy of data, which needs no gradient.
  void MarkData(const Tensor& tensor);
  // Returns the gradient of a parameter. Ops write it with `accumulate` unset; the step compiler sets it as needed.
  Tensor ParameterGradient(const Tensor& parameter);
  // Returns a new gradient with the shape of `value`, not yet written.
  Tensor NewGradient(const Tensor& value);

  // Records the first error, which Finish returns. The builder can still be used after an error.
  void Fail(absl::Status status);

 private:
  friend class GradientBuilder;
  // Calls Fail if the op is not valid. The message begins with `where` and the unit's name.
  void Check(const Op& op, absl::string_view where);
  ValueId AddGradientValue(ValueId of);
  ValueId AddValue(Value value);
  UnitGraph& unit() { return graph_.units.back(); }
  Tensor View(ValueId id);
  void CloseUnit();

  GraphOptions options_;
  ModelGraph graph_;
  absl::Status status_;
  bool in_unit_ = false;
  Sublayer sublayer_ = Sublayer::kNone;
  std::vector<std::function<void(GradientBuilder&)>> rules_;
  std::unordered_set<std::string> parameter_names_;
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
  // Adds a finished gradient of a full value. Does nothing if the value needs none. The tensor may also be the gradient
  // of another value (an addition passes its gradient on), so no op may update it in place.
  void Contribute(const Tensor& value, const Tensor& gradient);
  // Returns the gradient storage of a value that is read through views (packed Q, K, V), seen through the view `value`.
  // The rules that call this write or update disjoint views, which together cover the storage.
  Tensor GradientStorage(const Tensor& value);
  Tensor NewGradient(const Tensor& value) { return builder_.NewGradient(value); }
  // Returns whether the value needs a gradient: activations and the unit's input do, data does not.
  bool NeedsGradient(const Tensor& value) const;
  Tensor ParameterGradient(const Tensor& parameter) { return builder_.ParameterGradient(parameter); }
  // Appends a backward node. See Node for `recomputing`.
  void Emit(Op op, std::optional<Op> recomputing = std::nullopt);

 private:
  GraphBuilder& builder_;
  std::vector<ValueId> gradients_;  // By ValueId; -1: none yet.
};

}  // namespace shale
