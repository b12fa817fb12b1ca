// GraphBuilder: how a model is written down.
//
//   GraphBuilder b(options);
//   GroupId group = b.AddGroup("blocks.0");
//   ParameterId w = b.AddParameter(group, "blocks.0.up.weight", {F, C}, {Initializer::Kind::kNormal, 0.02});
//   b.BeginUnit("blocks.0", 0);
//   Tensor y = Linear(b, b.UnitInput(), w, std::nullopt, "up");     // layers.h
//   b.EndUnit(y);
//   StatusOr<ModelGraph> graph = b.Finish();
//
// Layers (layers.h) emit ops and, with OnBackward, the rule that emits their gradients; EndUnit runs the rules in
// reverse. Errors (a shape that does not fit) are remembered and returned by Finish. Not thread-safe.
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
  int64_t micro_batch = 1;
  int64_t sequence_length = 1;
  int64_t vocabulary = 0;
  int64_t loss_chunk_tokens = 512;  // Rows of logits that exist at once.
  bool last_target_only = false;
};

class GraphBuilder {
 public:
  explicit GraphBuilder(const GraphOptions& options);

  const GraphOptions& options() const { return options_; }
  int64_t tokens() const { return options_.micro_batch * options_.sequence_length; }

  // Parameters. A group is one flat vector; a parameter that two units use (a tied head) belongs to one group.
  GroupId AddGroup(std::string name);
  ParameterId AddParameter(GroupId group, std::string name, std::vector<int64_t> shape, Initializer initializer);
  const Parameter& parameter(ParameterId id) const { return graph_.parameters[id]; }

  // Units, in the order in which they run.
  void BeginUnit(std::string name, int layer = -1);
  Tensor UnitInput();                  // [T, C] of the unit before; a shape is that of its output.
  void EndUnit(const Tensor& output);  // A whole activation.
  void EndLastUnit();

  absl::StatusOr<ModelGraph> Finish();

  // What layers are made of. Tensors are symbolic, in the current unit.
  Tensor NewActivation(absl::string_view name, DType dtype, std::initializer_list<int64_t> shape, bool cheap = false);
  Tensor UseParameter(ParameterId id);
  Tensor UseData(ValueRole role);  // kInputs, kTargets, kRows, kLossScale, kLossTotal, kLogits
  void Emit(Op op, std::optional<Op> from_sum = std::nullopt);  // `from_sum`: see Node.
  void OnBackward(std::function<void(GradientBuilder&)> rule);
  // Values made from here on belong to this part of the block.
  void SetSublayer(Sublayer sublayer) { sublayer_ = sublayer; }
  void MarkSublayerInput(const Tensor& tensor);
  // Where a parameter's gradient goes. Ops write it with `accumulate` unset: the step compiler sets it as needed.
  Tensor ParameterGradient(const Tensor& parameter);
  // A new gradient with the shape of `value`, to be written.
  Tensor NewGradient(const Tensor& value);

  // Remembers the first error. After one, builders go on with what they have.
  void Fail(absl::Status status);

 private:
  friend class GradientBuilder;
  // Fails if the op is not valid; `where`: what to say before the unit's name.
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

// Emits the backward nodes of one unit. Gradients are tracked by value: several uses of a value add up.
class GradientBuilder {
 public:
  explicit GradientBuilder(GraphBuilder& builder) : builder_(builder), gradients_(builder.unit().values.size(), -1) {}

  // Whether anything downstream depends on the value: a rule whose output has no gradient emits nothing.
  bool HasGradient(const Tensor& value) const;
  // The gradient of `value`, seen through the same view.
  Tensor Gradient(const Tensor& value) const;
  // As Gradient, and forgets it: for a rule that folds what has arrived so far into the gradient that it contributes.
  std::optional<Tensor> TakeGradient(const Tensor& value);
  // Adds a finished gradient of a whole value. The tensor may be the gradient of another value too (an addition passes
  // its gradient on), so nothing may update it in place.
  void Contribute(const Tensor& value, const Tensor& gradient);
  // The gradient storage of a value that is read through views (packed Q, K, V): the rules that call this write or
  // update disjoint views of it, which together cover it.
  Tensor GradientStorage(const Tensor& value);
  Tensor NewGradient(const Tensor& value) { return builder_.NewGradient(value); }
  // Whether the value wants a gradient (tokens do not).
  bool NeedsGradient(const Tensor& value) const;
  Tensor ParameterGradient(const Tensor& parameter) { return builder_.ParameterGradient(parameter); }
  // `recomputing`: see Node.
  void Emit(Op op, std::optional<Op> recomputing = std::nullopt);

 private:
  GraphBuilder& builder_;
  std::vector<ValueId> gradients_;  // By value; -1: none yet.
};

}  // namespace shale
