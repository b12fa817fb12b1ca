#include "engine/graph/builder.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/ops/flat.h"

namespace shale {

namespace {

// Returns the view of `storage` that corresponds to the view `value` of its own storage.
Tensor SameView(const Tensor& value, const Tensor& storage) {
  Tensor view = value;
  view.where.symbol = storage.where.symbol;
  view.dtype = storage.dtype;
  view.where.offset_bytes = value.where.offset_bytes / SizeOf(value.dtype) * SizeOf(storage.dtype);
  return view;
}

}  // namespace

GraphBuilder::GraphBuilder(const GraphOptions& options) : options_(options) {
  graph_.mode = options.mode;
  graph_.compute_dtype = options.compute_dtype;
  graph_.micro_batch = options.micro_batch;
  graph_.sequence_length = options.sequence_length;
  graph_.vocabulary = options.vocabulary;
  graph_.last_target_only = options.last_target_only;
  graph_.target_weights = options.target_weights;
}

GroupId GraphBuilder::AddGroup(std::string name) {
  graph_.groups.push_back({std::move(name), {}});
  return static_cast<GroupId>(graph_.groups.size()) - 1;
}

ParameterId GraphBuilder::AddParameter(GroupId group, std::string name, std::vector<int64_t> shape,
                                       Initializer initializer) {
  SHALE_CHECK(group >= 0 && group < graph_.groups.size()) << name;
  if (!parameter_names_.insert(name).second) {
    Fail(absl::InvalidArgumentError(absl::StrCat("two parameters are named ", name)));
  }
  if (shape.empty() || shape.size() > Tensor::kMaxRank) {
    Fail(absl::InvalidArgumentError(absl::StrCat("parameter ", name, " has ", shape.size(), " dimensions; 1 to ",
                                                 Tensor::kMaxRank, " are allowed")));
    shape = {1};
  }
  const ParameterId id = static_cast<ParameterId>(graph_.parameters.size());
  graph_.parameters.push_back({std::move(name), std::move(shape), initializer, group});
  graph_.groups[group].parameters.push_back(id);
  return id;
}

void GraphBuilder::BeginUnit(std::string name, int layer) {
  SHALE_CHECK(!in_unit_) << name << ": the unit before was not ended";
  in_unit_ = true;
  sublayer_ = Sublayer::kNone;
  rules_.clear();
  graph_.units.emplace_back();
  unit().name = std::move(name);
  unit().layer = layer;
}

Tensor GraphBuilder::UnitInput() {
  if (unit().input < 0) {
    SHALE_CHECK(graph_.units.size() >= 2) << unit().name << ": the first unit has no input";
    const UnitGraph& before = graph_.units[graph_.units.size() - 2];
    SHALE_CHECK(before.output >= 0) << before.name << " was ended as the last unit";
    Value value;
    value.name = absl::StrCat(unit().name, ".input");
    value.role = ValueRole::kUnitInput;
    value.tensor = before.values[before.output].tensor;
    unit().input = AddValue(std::move(value));
  }
  return View(unit().input);
}

void GraphBuilder::EndUnit(const Tensor& output) {
  SHALE_CHECK(in_unit_);
  const ValueId id = output.where.symbol;
  SHALE_CHECK(unit().values[id].role == ValueRole::kActivation && output.elements() == View(id).elements())
      << unit().name << ": a unit's output must be a whole activation";
  unit().output = id;
  CloseUnit();
}

void GraphBuilder::EndLastUnit() {
  SHALE_CHECK(in_unit_);
  CloseUnit();
}

void GraphBuilder::CloseUnit() {
  in_unit_ = false;
  if (options_.mode != GraphMode::kTraining) return;
  GradientBuilder gradients(*this);
  if (unit().output >= 0) {
    Value value;
    value.name = absl::StrCat(unit().name, ".output.gradient");
    value.role = ValueRole::kOutputGradient;
    value.tensor = unit().values[unit().output].tensor;
    unit().output_gradient = AddValue(std::move(value));
    gradients.Contribute(View(unit().output), View(unit().output_gradient));
  }
  for (auto rule = rules_.rbegin(); rule != rules_.rend(); ++rule) (*rule)(gradients);
  if (unit().input < 0) return;
  const Tensor input = View(unit().input);
  if (!gradients.HasGradient(input)) {
    Fail(absl::InvalidArgumentError(absl::StrCat("unit ", unit().name, " does not depend on its input")));
    return;
  }
  Tensor gradient = gradients.Gradient(input);
  if (unit().values[gradient.where.symbol].role == ValueRole::kOutputGradient) {
    Tensor copy = gradients.NewGradient(input);
    gradients.Emit(Copy{.from = gradient, .to = copy});
    gradient = copy;
  }
  unit().input_gradient = gradient.where.symbol;
}

absl::StatusOr<ModelGraph> GraphBuilder::Finish() {
  SHALE_CHECK(!in_unit_);
  SHALE_RETURN_IF_ERROR(status_);
  if (graph_.units.empty()) return absl::InvalidArgumentError("a model needs at least one unit");
  if (graph_.units.back().output >= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("unit ", graph_.units.back().name, " is the last one: end it with a loss and EndLastUnit"));
  }
  return std::move(graph_);
}

Tensor GraphBuilder::NewActivation(absl::string_view name, DType dtype, std::initializer_list<int64_t> shape,
                                   bool cheap) {
  Value value;
  value.name = absl::StrCat(unit().name, ".", name);
  value.tensor = Tensor::Contiguous(dtype, shape);
  value.sublayer = sublayer_;
  value.cheap = cheap;
  return View(AddValue(std::move(value)));
}

Tensor GraphBuilder::UseParameter(ParameterId id) {
  for (ValueId v = 0; v < unit().values.size(); ++v) {
    if (unit().values[v].role == ValueRole::kParameter && unit().values[v].parameter == id) return View(v);
  }
  const Parameter& p = graph_.parameters[id];
  Value value;
  value.name = p.name;
  value.role = ValueRole::kParameter;
  value.parameter = id;
  Tensor& t = value.tensor;
  t.dtype = options_.compute_dtype;
  t.rank = static_cast<int>(p.shape.size());
  int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    t.shape[i] = p.shape[i];
    t.strides[i] = stride;
    stride *= p.shape[i];
  }
  return View(AddValue(std::move(value)));
}

Tensor GraphBuilder::UseData(ValueRole role) {
  for (ValueId v = 0; v < unit().values.size(); ++v) {
    if (unit().values[v].role == role) return View(v);
  }
  const int64_t B = options_.micro_batch, S = options_.sequence_length;
  Value value;
  value.role = role;
  switch (role) {
    case ValueRole::kInputs:
      value.name = "inputs";
      value.tensor = Tensor::Contiguous(DType::kInt32, {B, S});
      break;
    case ValueRole::kTargets:
      value.name = "targets";
      value.tensor = Tensor::Contiguous(DType::kInt32, {B, S});
      break;
    case ValueRole::kTargetWeights:
      value.name = "target_weights";
      value.tensor = Tensor::Contiguous(DType::kFloat32, {B, S});
      break;
    case ValueRole::kRows:
      value.name = "rows";
      value.tensor = Tensor::Contiguous(DType::kInt32, {B});
      break;
    case ValueRole::kLossScale:
      value.name = "loss_scale";
      value.tensor = Tensor::Contiguous(DType::kFloat32, {1});
      break;
    case ValueRole::kLossTotal:
      value.name = "loss_total";
      value.tensor = Tensor::Contiguous(DType::kFloat64, {1});
      break;
    case ValueRole::kLogits:
      value.name = "logits";
      value.tensor = Tensor::Contiguous(options_.compute_dtype, {B, options_.vocabulary});
      break;
    default: SHALE_CHECK(false) << "not a data role";
  }
  return View(AddValue(std::move(value)));
}

Tensor GraphBuilder::UseRows(ValueRole role, int64_t width) {
  SHALE_CHECK(role == ValueRole::kFeatures || role == ValueRole::kTargetValues) << "not a role with columns";
  const char* const name = role == ValueRole::kFeatures ? "features" : "target_values";
  if (width < 1) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("unit ", unit().name, ": ", name, " need at least 1 column; found ", width)));
    width = 1;
  }
  for (const UnitGraph& other : graph_.units) {
    for (const Value& value : other.values) {
      if (value.role != role || value.tensor.dim(1) == width) continue;
      Fail(absl::InvalidArgumentError(absl::StrCat("unit ", unit().name, " uses ", width, " columns of ", name,
                                                   ", unit ", other.name, " uses ", value.tensor.dim(1))));
      width = value.tensor.dim(1);
    }
  }
  for (ValueId v = 0; v < unit().values.size(); ++v) {
    if (unit().values[v].role == role) return View(v);
  }
  Value value;
  value.name = name;
  value.role = role;
  value.tensor = Tensor::Contiguous(DType::kFloat32, {tokens(), width});
  return View(AddValue(std::move(value)));
}

void GraphBuilder::Check(const Op& op, absl::string_view where) {
  absl::Status valid = Validate(op);
  if (!valid.ok()) Fail(absl::Status(valid.code(), absl::StrCat(where, unit().name, ": ", valid.message())));
}

void GraphBuilder::Emit(Op op, std::optional<Op> from_sum) {
  Check(op, "unit ");
  if (from_sum) Check(*from_sum, "unit ");
  const int node = static_cast<int>(unit().forward.size());
  VisitOperands(std::as_const(op), [&](absl::string_view, const Tensor& t, Access access) {
    if (!t.present() || access == Access::kRead) return;
    std::vector<int>& producers = unit().values[t.where.symbol].producers;
    if (producers.empty() || producers.back() != node) producers.push_back(node);
  });
  unit().forward.push_back({.op = std::move(op), .from_sum = std::move(from_sum)});
}

void GraphBuilder::OnBackward(std::function<void(GradientBuilder&)> rule) {
  if (options_.mode == GraphMode::kTraining) rules_.push_back(std::move(rule));
}

void GraphBuilder::MarkSublayerInput(const Tensor& tensor) { unit().values[tensor.where.symbol].sublayer_input = true; }

void GraphBuilder::MarkData(const Tensor& tensor) { unit().values[tensor.where.symbol].is_data = true; }

void GraphBuilder::Fail(absl::Status status) { status_.Update(status); }

ValueId GraphBuilder::AddValue(Value value) {
  unit().values.push_back(std::move(value));
  const ValueId id = static_cast<ValueId>(unit().values.size()) - 1;
  unit().values[id].tensor.where = {.symbol = id};
  return id;
}

Tensor GraphBuilder::View(ValueId id) { return unit().values[id].tensor; }

Tensor GraphBuilder::ParameterGradient(const Tensor& parameter) {
  const Value& source = unit().values[parameter.where.symbol];
  SHALE_CHECK(source.role == ValueRole::kParameter) << source.name;
  for (const Value& v : unit().values) {
    if (v.role == ValueRole::kParameterGradient && v.parameter == source.parameter) return v.tensor;
  }
  Value value;
  value.name = absl::StrCat(source.name, ".gradient");
  value.role = ValueRole::kParameterGradient;
  value.parameter = source.parameter;
  value.tensor = source.tensor;
  value.tensor.dtype = DType::kFloat32;
  return View(AddValue(std::move(value)));
}

Tensor GraphBuilder::NewGradient(const Tensor& value) {
  return SameView(value, View(AddGradientValue(value.where.symbol)));
}

ValueId GraphBuilder::AddGradientValue(ValueId of) {
  Value value;
  value.name = absl::StrCat(unit().values[of].name, ".gradient");
  value.role = ValueRole::kGradient;
  value.tensor = unit().values[of].tensor;
  return AddValue(std::move(value));
}

bool GradientBuilder::NeedsGradient(const Tensor& value) const {
  const Value& source = builder_.unit().values[value.where.symbol];
  if (source.is_data) return false;
  const ValueRole role = source.role;
  return role == ValueRole::kActivation || role == ValueRole::kUnitInput;
}

bool GradientBuilder::HasGradient(const Tensor& value) const {
  const ValueId id = value.where.symbol;
  return id < gradients_.size() && gradients_[id] >= 0;
}

Tensor GradientBuilder::Gradient(const Tensor& value) const {
  SHALE_CHECK(HasGradient(value)) << builder_.unit().values[value.where.symbol].name;
  return SameView(value, builder_.View(gradients_[value.where.symbol]));
}

std::optional<Tensor> GradientBuilder::TakeGradient(const Tensor& value) {
  if (!HasGradient(value)) return std::nullopt;
  Tensor gradient = Gradient(value);
  gradients_[value.where.symbol] = -1;
  return gradient;
}

void GradientBuilder::Contribute(const Tensor& value, const Tensor& gradient) {
  if (!NeedsGradient(value)) return;
  const ValueId id = value.where.symbol;
  if (gradients_.size() <= id) gradients_.resize(id + 1, -1);
  if (gradients_[id] < 0) {
    gradients_[id] = gradient.where.symbol;
    return;
  }
  const Tensor before = Gradient(value);
  Tensor sum = NewGradient(value);
  Emit(Add{.a = before, .b = gradient, .out = sum});
  gradients_[id] = sum.where.symbol;
}

Tensor GradientBuilder::GradientStorage(const Tensor& value) {
  const ValueId id = value.where.symbol;
  if (gradients_.size() <= id) gradients_.resize(id + 1, -1);
  if (gradients_[id] < 0) gradients_[id] = builder_.AddGradientValue(id);
  return SameView(value, builder_.View(gradients_[id]));
}

void GradientBuilder::Emit(Op op, std::optional<Op> recomputing) {
  builder_.Check(op, "gradient in unit ");
  if (recomputing) builder_.Check(*recomputing, "gradient in unit ");
  builder_.unit().backward.push_back({.op = std::move(op), .recomputing = std::move(recomputing)});
}

}  // namespace shale
