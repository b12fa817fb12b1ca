// The misuses of a GraphBuilder that no single op shows.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/graph_builder.h"
#include "engine/compile/graph/graph.h"
#include "engine/strings/pattern.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

bool HasFp32Logits(const UnitGraph& unit) {
  for (const Node& node : unit.forward) {
    const auto* const loss = node.op.As<CrossEntropy>();
    if (loss != nullptr && loss->logits_TV.dtype == DType::kFloat32) return true;
  }
  return std::any_of(unit.values.begin(), unit.values.end(), [](const Value& value) {
    return value.role == ValueRole::kLogits && value.tensor.dtype == DType::kFloat32;
  });
}

}  // namespace

bool GraphBuilder::IsOwn(const Tensor& tensor) {
  const Location& where = tensor.where;
  return where.unit_mark == mark_ && where.symbol >= 0 && where.symbol < std::ssize(unit().values);
}

std::string GraphBuilder::DescribeForeign(const Tensor& tensor) const {
  if (!tensor.present()) return "an absent tensor";
  const auto mark = std::find(unit_marks_.begin(), unit_marks_.end(), tensor.where.unit_mark);
  if (mark == unit_marks_.end()) return "a tensor of another GraphBuilder";
  const UnitGraph& owner = graph_.units[mark - unit_marks_.begin()];
  const ValueId id = tensor.where.symbol;
  const bool known = id >= 0 && id < std::ssize(owner.values);
  return absl::StrCat(known ? owner.values[id].name : "a tensor", " of unit ", owner.name);
}

Tensor GraphBuilder::Operand(const Tensor& tensor, int rank, absl::string_view user) {
  const bool own = IsOwn(tensor);
  if (own && tensor.rank == rank) return tensor;
  if (!own) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("unit ", unit().name, ": ", user, " reads ", DescribeForeign(tensor),
                     "; a unit reads its own tensors, and the output of the unit before through UnitInput()")));
  } else {
    Fail(absl::InvalidArgumentError(absl::StrCat("unit ", unit().name, ": ", user, " reads ",
                                                 unit().values[tensor.where.symbol].name, " ", tensor.ToString(),
                                                 "; wanted ", rank, " dimensions")));
  }
  const DType dtype = options_.compute_dtype;
  switch (rank) {
    case 1: return NewActivation("wrong", dtype, {1});
    case 2: return NewActivation("wrong", dtype, {1, 1});
    case 3: return NewActivation("wrong", dtype, {1, 1, 1});
    default: return NewActivation("wrong", dtype, {1, 1, 1, 1});
  }
}

bool GraphBuilder::MultipliesInFloat8(const Tensor& x_TK, const Tensor& weight_NK, bool rows, absl::string_view name) {
  // Parts that a model computes in fp32 stay in fp32.
  const bool narrow = x_TK.dtype != DType::kFloat32 && weight_NK.dtype == x_TK.dtype && weight_NK.rank == 2;
  if (!options_.float8_matmuls || unit().layer < 0 || !narrow) return false;
  // With blockwise scales nothing is gathered in fp8, so these weights need no groups of their own.
  if (IsOwn(weight_NK) && !options_.float8_blockwise) {
    float8_weights_.insert(unit().values[weight_NK.where.symbol].parameter);
  }
  if (options_.mode == GraphMode::kLogits) return false;
  const bool tiles = options_.float8_blockwise && !rows;  // The tiles alone ask something of the number of rows.
  const int64_t row_multiple = rows ? kFloat8Multiple : tiles ? kFloat8RowMultiple : 1;
  const struct {
    int64_t size, multiple;
    const char *what, *remedy;
  } sizes[] = {{x_TK.dim(1), kFloat8Multiple, "inputs", "widths of the model"},
               {weight_NK.dim(0), kFloat8Multiple, "outputs", "widths of the model"},
               {x_TK.dim(0), row_multiple, "rows in a micro-batch",
                tiles ? "precision.fp8_scaling TENSORWISE, a batch.micro_batch or batch.sequence_length"
                      : "a batch.micro_batch or batch.sequence_length"}};
  for (const auto& [size, multiple, what, remedy] : sizes) {
    if (size % multiple == 0) continue;
    Fail(absl::InvalidArgumentError(absl::StrCat("linear layer ", unit().name, ".", name, " has ", size, " ", what,
                                                 ", and matmuls in FP8 need a multiple of ", multiple, "; choose ",
                                                 remedy, " to match, or precision.matmuls AS_COMPUTED")));
    return false;
  }
  return true;
}

void GraphBuilder::CheckOwnership(const Op& op) {
  VisitOperands(op, [&](absl::string_view operand, const Tensor& t, Access) {
    if (!t.present() || IsOwn(t)) return;
    Fail(absl::InvalidArgumentError(absl::StrCat("unit ", unit().name, ": operand ", operand, " of ", NameOf(op),
                                                 " is ", DescribeForeign(t), ", which this unit must not use")));
  });
}

void GraphBuilder::CheckResult() {
  if (in_unit_) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("unit ", unit().name, " has no end: call EndUnit, or EndLastUnit after the loss")));
  }
  if (graph_.units.empty()) return Fail(absl::InvalidArgumentError("a model needs at least one unit"));
  const UnitGraph& last = graph_.units.back();
  if (last.output >= 0) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("unit ", last.name, " is the last one: end it with a loss and EndLastUnit")));
  }
  if (results_.empty()) {
    return Fail(absl::InvalidArgumentError(
        absl::StrCat("the model has no loss: call one, such as LinearCrossEntropy, in its last unit, ", last.name)));
  }
  if (results_.size() > 1) {
    return Fail(
        absl::InvalidArgumentError(absl::StrCat("the model has two losses, in unit ", graph_.units[results_[0]].name,
                                                " and in unit ", graph_.units[results_[1]].name, "; keep one")));
  }
  if (results_[0] != graph_.units.size() - 1) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("unit ", graph_.units[results_[0]].name, " has the loss, but the last unit is ", last.name)));
  }
  const auto is_logits = [](const Value& value) { return value.role == ValueRole::kLogits; };
  if (options_.mode == GraphMode::kLogits && std::none_of(last.values.begin(), last.values.end(), is_logits)) {
    Fail(absl::InvalidArgumentError(absl::StrCat("unit ", last.name, " computes no logits to generate from")));
  }
  if (options_.fp32_logits && !HasFp32Logits(last)) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("the loss of unit ", last.name, " reads no logits in fp32; leave precision.fp32_logits out")));
  }
}

void GraphBuilder::CheckOptimizerGroups() {
  std::vector<std::string> trained;
  for (const Parameter& parameter : graph_.parameters) {
    if (!parameter.frozen) trained.push_back(parameter.name);
  }
  std::vector<bool> has_parameters(options_.optimizer_groups.size());
  for (const Parameter& parameter : graph_.parameters) {
    if (parameter.optimizer_group >= 0) has_parameters[parameter.optimizer_group] = true;
  }
  for (size_t i = 0; i < options_.optimizer_groups.size() && status_.ok(); ++i) {
    const std::string field = absl::StrCat("optimizer.groups[", i, "].parameters");
    for (size_t k = 0; k < options_.optimizer_groups[i].size(); ++k) {
      const std::string& pattern = options_.optimizer_groups[i][k];
      const std::string none = MatchesNone(field, k, pattern, "parameter that trains", trained);
      if (!none.empty()) Fail(absl::InvalidArgumentError(none));
    }
    if (has_parameters[i]) continue;
    Fail(absl::InvalidArgumentError(
        absl::StrCat("optimizer.groups[", i,
                     "] has no parameter, because groups before it match all of its own; put "
                     "it before them, or leave it out")));
  }
}

void GraphBuilder::CheckParameters() {
  if (!status_.ok()) return;
  std::vector<bool> used(graph_.parameters.size()), has_gradient(graph_.parameters.size());
  for (const UnitGraph& unit : graph_.units) {
    for (const Value& value : unit.values) {
      if (value.role == ValueRole::kParameter) used[value.parameter] = true;
      if (value.role == ValueRole::kParameterGradient) has_gradient[value.parameter] = true;
    }
  }
  for (size_t id = 0; id < used.size(); ++id) {
    const std::string& name = graph_.parameters[id].name;
    if (!used[id]) {
      Fail(absl::InvalidArgumentError(
          absl::StrCat("parameter ", name, " is never used: use it in a unit, or do not add it")));
    } else if (options_.mode == GraphMode::kTraining && !graph_.parameters[id].frozen && !has_gradient[id]) {
      Fail(absl::InvalidArgumentError(
          absl::StrCat("parameter ", name, " has no gradient: the loss does not depend on what is computed with it")));
    }
  }
  std::vector<std::string> names;
  for (const Parameter& parameter : graph_.parameters) names.push_back(parameter.name);
  for (size_t i = 0; i < options_.train_only.size(); ++i) {
    const std::string none = MatchesNone("optimizer.train_only", i, options_.train_only[i], "parameter", names);
    if (!none.empty()) Fail(absl::InvalidArgumentError(none));
  }
  CheckOptimizerGroups();
  for (const ParameterGroup& group : graph_.groups) {
    if (group.parameters.empty()) {
      Fail(absl::InvalidArgumentError(absl::StrCat("group ", group.name, " has no parameters")));
    }
  }
}

namespace {

// Lowers `limit`, which is 0 if there is none yet, to `other`.
void Lower(int64_t& limit, int64_t other) { limit = limit == 0 ? other : std::min(limit, other); }

}  // namespace

DataNeeds NeedsOf(const ModelGraph& graph) {
  DataNeeds needs{.last_target_only = graph.last_target_only};
  const auto set = [&](StepItem item, int64_t elements) { needs.elements[static_cast<size_t>(item)] = elements; };
  for (const UnitGraph& unit : graph.units) {
    for (const Value& value : unit.values) {
      if (value.role != ValueRole::kData) continue;
      set(value.item, RowOf(value.item).shape == ItemShape::kColumns ? value.tensor.dim(1) : 1);
    }
    for (const Node& node : unit.forward) {
      if (const auto* loss = node.op.As<CrossEntropy>()) Lower(needs.target_ids, loss->logits_TV.dim(1));
      const auto* embedding = node.op.As<EmbeddingForward>();
      if (embedding == nullptr) continue;
      const Value& tokens = unit.values[embedding->tokens_BS.where.symbol];
      if (tokens.IsData(StepItem::kInputs)) Lower(needs.input_ids, embedding->weight_VC.dim(0));
    }
  }
  set(StepItem::kTargetWeights, graph.target_weights != TargetWeights::kNone);
  set(StepItem::kPositionIds, graph.position_ids);
  return needs;
}

}  // namespace shale
