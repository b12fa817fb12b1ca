#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/api/graph_builder.h"
#include "engine/strings/pattern.h"
#include "kernels/check.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/float8.h"

namespace shale {
namespace {

// More bytes than a rank of any machine has. Sizes below it do not overflow.
constexpr int64_t kLargestTensorBytes = int64_t{1} << 60;

// Returns a mark that no other unit of this process has (see [Note: the mark of a unit]). Marks come again after 2^32
// units, of which nobody keeps tensors for so long.
uint32_t NewMark() {
  static std::atomic<uint32_t> last = 0;
  uint32_t mark = 0;
  while (mark == 0) mark = last.fetch_add(1, std::memory_order_relaxed) + 1;
  return mark;
}

// Returns whether every dimension is at least 1 and the tensor is small enough to be planned.
template <class Shape>
bool IsPossible(const Shape& shape) {
  int64_t bytes = static_cast<int64_t>(sizeof(double));
  for (const int64_t n : shape) {
    if (n < 1 || __builtin_mul_overflow(bytes, n, &bytes) || bytes > kLargestTensorBytes) return false;
  }
  return true;
}

template <class Shape>
absl::Status Impossible(absl::string_view what, const Shape& shape, const GraphOptions& options) {
  std::string sizes;
  bool is_empty = false;
  for (const int64_t n : shape) {
    absl::StrAppend(&sizes, sizes.empty() ? "" : ", ", n);
    is_empty |= n == 0;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      what, " has the shape [", sizes, "]; dimensions must be at least 1, and their product below 2^57",
      is_empty && options.vocabulary == 0 ? ". The vocabulary is 0, because neither the model nor its data has one"
                                          : ""));
}

}  // namespace

const Value& ModelGraph::logits() const {
  for (const Value& value : units.back().values) {
    if (value.role == ValueRole::kLogits) return value;
  }
  SHALE_CHECK(false) << "not a graph of logits";
  return units.back().values[0];
}

GraphBuilder::GraphBuilder(const GraphOptions& options) : GraphBuilder(options, Float8Sources::kUsed) {}

GraphBuilder::GraphBuilder(const GraphOptions& options, Float8Sources sources)
    : options_(options), float8_sources_(sources), outside_mark_(NewMark()) {
  mark_ = outside_mark_;
  graph_.mode = options.mode;
  graph_.micro_batch = options.micro_batch;
  graph_.sequence_length = options.sequence_length;
  graph_.vocabulary = options.vocabulary;
  graph_.last_target_only = options.last_target_only;
  graph_.target_weights = options.target_weights;
  graph_.position_ids = options.position_ids;
  graph_.cache = options.cache;
}

GroupId GraphBuilder::AddGroup(std::string name) {
  graph_.groups.push_back({std::move(name), {}});
  return static_cast<GroupId>(graph_.groups.size()) - 1;
}

ParameterId GraphBuilder::AddParameter(GroupId group, std::string name, std::vector<int64_t> shape,
                                       Initializer initializer, std::optional<DType> dtype) {
  if (group < 0 || group >= std::ssize(graph_.groups)) {
    Fail(absl::InvalidArgumentError(absl::StrCat("parameter ", name, " is added to group ", group,
                                                 ", which AddGroup of this builder did not return")));
    group = graph_.groups.empty() ? AddGroup("none") : 0;
  }
  if (!parameter_names_.insert(name).second) {
    Fail(absl::InvalidArgumentError(absl::StrCat("two parameters are named ", name)));
  }
  if (shape.empty() || shape.size() > Tensor::kMaxRank) {
    Fail(absl::InvalidArgumentError(absl::StrCat("parameter ", name, " has ", shape.size(), " dimensions; 1 to ",
                                                 Tensor::kMaxRank, " are allowed")));
    shape = {1};
  }
  if (!IsPossible(shape)) {
    Fail(Impossible(absl::StrCat("parameter ", name), shape, options_));
    std::fill(shape.begin(), shape.end(), 1);
  }
  if (dtype && *dtype != options_.compute_dtype && *dtype != DType::kFloat32) {
    Fail(absl::InvalidArgumentError(absl::StrCat("parameter ", name, " is used in ", ToString(*dtype),
                                                 "; wanted f32 or the compute dtype, ",
                                                 ToString(options_.compute_dtype))));
    dtype.reset();
  }
  const ParameterId id = static_cast<ParameterId>(graph_.parameters.size());
  const bool frozen = !options_.train_only.empty() && !MatchesAny(options_.train_only, name);
  const int optimizer_group = frozen ? -1 : FirstMatch(options_.optimizer_groups, name);
  graph_.parameters.push_back({.name = std::move(name),
                               .shape = std::move(shape),
                               .initializer = initializer,
                               .group = group,
                               .dtype = dtype.value_or(options_.compute_dtype),
                               .frozen = frozen,
                               .optimizer_group = optimizer_group});
  graph_.groups[group].parameters.push_back(id);
  return id;
}

void GraphBuilder::BeginUnit(std::string name, int layer) {
  if (in_unit_) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("unit ", name, " begins before unit ", unit().name, " was ended with EndUnit or EndLastUnit")));
  } else if (!graph_.units.empty() && graph_.units.back().output < 0) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("unit ", name, " begins after unit ", graph_.units.back().name, " was ended as the last one")));
  }
  if (!unit_names_.insert(name).second) {
    Fail(absl::InvalidArgumentError(absl::StrCat("two units are named ", name)));
  }
  if (layer != -1 && layer != next_layer_) {
    Fail(absl::InvalidArgumentError(absl::StrCat("unit ", name, " is block ", layer, "; the next block has the index ",
                                                 next_layer_, ", and a unit that is no block has -1")));
  }
  next_layer_ += layer != -1;
  in_unit_ = true;
  sublayer_ = Sublayer::kNone;
  rules_.clear();
  graph_.units.emplace_back();
  unit_marks_.push_back(mark_ = NewMark());
  unit().name = std::move(name);
  unit().layer = layer;
}

UnitGraph& GraphBuilder::unit() {
  if (in_unit_) return graph_.units.back();
  Fail(absl::InvalidArgumentError("a layer is called outside of a unit: call BeginUnit first"));
  return outside_;
}

Tensor GraphBuilder::UnitInput() {
  if (unit().input >= 0) return View(unit().input);
  Value value;
  value.name = absl::StrCat(unit().name, ".input");
  value.role = ValueRole::kUnitInput;
  value.tensor = Tensor::Contiguous(options_.compute_dtype, {1, 1});
  if (graph_.units.size() < 2) {
    Fail(absl::InvalidArgumentError(absl::StrCat("unit ", unit().name,
                                                 " is the first one, which has no input: take "
                                                 "the data with Embedding")));
  } else if (const UnitGraph& before = graph_.units[graph_.units.size() - 2]; before.output >= 0) {
    value.tensor = before.values[before.output].tensor;
    value.needs_gradient = before.values[before.output].needs_gradient;
  }
  return View(unit().input = AddValue(std::move(value)));
}

void GraphBuilder::EndUnit(const Tensor& output) {
  if (!in_unit_) return Fail(absl::InvalidArgumentError("EndUnit is called outside of a unit"));
  const bool own = IsOwn(output);
  const ValueId id = own ? output.where.symbol : -1;
  if (!own) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("unit ", unit().name, " is ended with ", DescribeForeign(output), " as its output")));
  } else if (unit().values[id].role != ValueRole::kActivation || output.elements() != View(id).elements()) {
    Fail(absl::InvalidArgumentError(absl::StrCat("unit ", unit().name, " is ended with ", unit().values[id].name, " ",
                                                 output.ToString(),
                                                 " as its output, which must be an activation of "
                                                 "this unit, and all of it")));
  }
  // After an error the unit gets some output, so that the next one can be built.
  unit().output = status_.ok() ? id : NewActivation("output", options_.compute_dtype, {1, 1}).where.symbol;
  CloseUnit();
}

void GraphBuilder::EndLastUnit() {
  if (!in_unit_) return Fail(absl::InvalidArgumentError("EndLastUnit is called outside of a unit"));
  CloseUnit();
}

void GraphBuilder::CloseUnit() {
  if (options_.mode == GraphMode::kTraining && status_.ok()) EmitBackward();
  if (graph_.units.size() > 1 && unit().input < 0) {
    Fail(absl::InvalidArgumentError(absl::StrCat("unit ", unit().name, " does not use its input: call UnitInput()")));
  }
  // See [Note: the mark of a unit].
  const auto unmark = [](Op& op) {
    VisitOperands(op, [](absl::string_view, Tensor& t, Access) { t.where.unit_mark = 0; });
  };
  for (Value& value : unit().values) value.tensor.where.unit_mark = 0;
  for (std::vector<Node>* nodes : {&unit().forward, &unit().backward}) {
    for (Node& node : *nodes) {
      unmark(node.op);
      if (node.from_sum) unmark(*node.from_sum);
      if (node.recomputing) unmark(*node.recomputing);
    }
  }
  if (options_.float8_matmuls && float8_sources_ == Float8Sources::kUsed && status_.ok()) UseFloat8Sources(unit());
  rules_.clear();
  mark_ = outside_mark_;
  in_unit_ = false;
}

void GraphBuilder::EmitBackward() {
  GradientBuilder gradients(*this);
  if (unit().output >= 0 && unit().values[unit().output].needs_gradient) {
    Value value;
    value.name = absl::StrCat(unit().name, ".output.gradient");
    value.role = ValueRole::kOutputGradient;
    value.tensor = unit().values[unit().output].tensor;
    unit().output_gradient = AddValue(std::move(value));
    gradients.Contribute(View(unit().output), View(unit().output_gradient));
  }
  for (auto rule = rules_.rbegin(); rule != rules_.rend(); ++rule) (*rule)(gradients);
  if (unit().input < 0 || !unit().values[unit().input].needs_gradient) return;
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
  CheckResult();
  CheckParameters();
  SHALE_RETURN_IF_ERROR(status_);
  DecideStorage();
  SHALE_RETURN_IF_ERROR(status_);
  SplitGroups();
  return std::move(graph_);
}

Tensor GraphBuilder::NewActivation(absl::string_view name, DType dtype, std::initializer_list<int64_t> shape,
                                   bool cheap) {
  Value value;
  value.name = absl::StrCat(unit().name, ".", name);
  if (IsPossible(shape)) {
    value.tensor = Tensor::Contiguous(dtype, shape);
  } else {
    Fail(Impossible(absl::StrCat("activation ", value.name), shape, options_));
    value.tensor = Tensor::Contiguous(dtype, {1, 1, 1, 1});
    value.tensor.rank = static_cast<int>(shape.size());
  }
  value.sublayer = sublayer_;
  value.cheap = cheap;
  return View(AddValue(std::move(value)));
}

Tensor GraphBuilder::UseParameter(ParameterId id) {
  for (ValueId v = 0; v < unit().values.size(); ++v) {
    if (unit().values[v].role == ValueRole::kParameter && unit().values[v].parameter == id) return View(v);
  }
  Parameter p = {.name = "none", .shape = {1, 1}, .dtype = options_.compute_dtype};
  if (id >= 0 && id < std::ssize(graph_.parameters)) {
    p = graph_.parameters[id];
  } else {
    Fail(absl::InvalidArgumentError(absl::StrCat("unit ", unit().name, " uses parameter number ", id,
                                                 ", which AddParameter of this builder did not return")));
  }
  Value value;
  value.name = p.name;
  value.role = ValueRole::kParameter;
  value.parameter = id;
  value.needs_gradient = !p.frozen;
  Tensor& t = value.tensor;
  t.dtype = p.dtype;
  t.rank = static_cast<int>(p.shape.size());
  int64_t stride = 1;
  for (int i = t.rank - 1; i >= 0; --i) {
    t.shape[i] = p.shape[i];
    t.strides[i] = stride;
    stride *= p.shape[i];
  }
  return View(AddValue(std::move(value)));
}

ValueId GraphBuilder::Find(ValueRole role, StepItem item) {
  const std::vector<Value>& values = unit().values;
  const auto found = std::find_if(values.begin(), values.end(), [&](const Value& value) {
    return value.role == role && (role != ValueRole::kData || value.item == item);
  });
  return found == values.end() ? -1 : static_cast<ValueId>(found - values.begin());
}

Tensor GraphBuilder::UseData(StepItem item) {
  const StepItemRow& row = RowOf(item);
  SHALE_CHECK(row.shape == ItemShape::kTokens || row.shape == ItemShape::kSequences)
      << row.name << " has another shape";
  if (const ValueId id = Find(ValueRole::kData, item); id >= 0) return View(id);
  const int64_t B = options_.micro_batch, S = options_.sequence_length;
  return View(AddValue({.name = std::string(row.name),
                        .role = ValueRole::kData,
                        .tensor = row.shape == ItemShape::kTokens ? Tensor::Contiguous(row.dtype, {B, S})
                                                                  : Tensor::Contiguous(row.dtype, {B}),
                        .item = item}));
}

Tensor GraphBuilder::UseScalar(ValueRole role) {
  SHALE_CHECK(role == ValueRole::kMeanFactor || role == ValueRole::kLossTotal) << "not a scalar";
  if (const ValueId id = Find(role); id >= 0) return View(id);
  const bool factor = role == ValueRole::kMeanFactor;
  return View(AddValue({.name = factor ? "mean_factor" : "loss_total",
                        .role = role,
                        .tensor = Tensor::Contiguous(factor ? DType::kFloat32 : DType::kFloat64, {1})}));
}

Tensor GraphBuilder::UseLogits(DType dtype) {
  if (const ValueId id = Find(ValueRole::kLogits); id >= 0) return View(id);
  return View(AddValue({.name = "logits",
                        .role = ValueRole::kLogits,
                        .tensor = Tensor::Contiguous(dtype, {options_.micro_batch, options_.vocabulary})}));
}

Tensor GraphBuilder::NewCache(absl::string_view name, DType dtype, int64_t groups, int64_t width, int64_t window) {
  const Cache& cache = options_.cache;
  SHALE_CHECK(cache.positions > 0 && cache.longest_chunk > 0);
  // A ring of this many rows holds the windows of all tokens of the longest run (CachedAttention).
  const bool ring = window > 0 && window <= cache.positions - cache.longest_chunk;
  const int64_t positions = ring ? window + cache.longest_chunk - 1 : cache.positions;
  Value value;
  value.name = absl::StrCat(unit().name, ".", name);
  value.role = ValueRole::kCache;
  std::array<int64_t, 4> shape = {cache.sequences, groups, positions, width};
  if (!IsPossible(shape)) {
    Fail(Impossible(absl::StrCat("cache ", value.name), shape, options_));
    shape.fill(1);
  }
  value.tensor = Tensor::Contiguous(dtype, {shape[0], shape[1], shape[2], shape[3]});
  return View(AddValue(std::move(value)));
}

Tensor GraphBuilder::UseColumns(StepItem item, int64_t columns) {
  const StepItemRow& row = RowOf(item);
  SHALE_CHECK(row.shape == ItemShape::kColumns) << row.name << " has no columns";
  if (columns < 1) {
    Fail(absl::InvalidArgumentError(
        absl::StrCat("unit ", unit().name, ": ", row.name, " need at least 1 column; found ", columns)));
    columns = 1;
  }
  if (const std::array<int64_t, 2> shape = {tokens(), columns}; !IsPossible(shape)) {
    Fail(Impossible(absl::StrCat("unit ", unit().name, ": ", row.name), shape, options_));
    columns = 1;
  }
  for (const UnitGraph& other : graph_.units) {
    for (const Value& value : other.values) {
      if (!value.IsData(item) || value.tensor.dim(1) == columns) continue;
      Fail(absl::InvalidArgumentError(absl::StrCat("unit ", unit().name, " uses ", columns, " columns of ", row.name,
                                                   ", unit ", other.name, " uses ", value.tensor.dim(1))));
      columns = value.tensor.dim(1);
    }
  }
  if (const ValueId id = Find(ValueRole::kData, item); id >= 0) return View(id);
  return View(AddValue({.name = std::string(row.name),
                        .role = ValueRole::kData,
                        .tensor = Tensor::Contiguous(row.dtype, {tokens(), columns}),
                        .item = item}));
}

void GraphBuilder::Check(const Op& op, absl::string_view where) {
  absl::Status valid = Validate(op);
  if (!valid.ok()) Fail(absl::Status(valid.code(), absl::StrCat(where, unit().name, ": ", valid.message())));
}

void GraphBuilder::Emit(Op op, std::optional<Op> from_sum) {
  CheckOwnership(op);
  Check(op, "unit ");
  if (from_sum) Check(*from_sum, "unit ");
  const int node = static_cast<int>(unit().forward.size());
  bool needs_gradient = false;
  VisitOperands(std::as_const(op), [&](absl::string_view, const Tensor& t, Access access) {
    if (access != Access::kWrite) needs_gradient |= NeedsGradient(t);
  });
  VisitOperands(std::as_const(op), [&](absl::string_view, const Tensor& t, Access access) {
    if (!t.present() || access == Access::kRead || !IsOwn(t)) return;
    Value& value = unit().values[t.where.symbol];
    if (value.role == ValueRole::kActivation) value.needs_gradient |= needs_gradient;
    if (value.producers.empty() || value.producers.back() != node) value.producers.push_back(node);
    const bool result = value.role == ValueRole::kLossTotal || value.role == ValueRole::kLogits;
    if (result) results_.push_back(graph_.units.size() - 1);
  });
  unit().forward.push_back({.op = std::move(op), .from_sum = std::move(from_sum)});
}

const QuantizeFloat8* GraphBuilder::FindQuantized(const Tensor& x, bool transposed) {
  if (!IsOwn(x)) return nullptr;
  const std::vector<int>& producers = unit().values[x.where.symbol].producers;
  // What was quantized before the last change of x is another matrix.
  for (int node = std::ssize(unit().forward); --node > (producers.empty() ? -1 : producers.back());) {
    const auto* op = unit().forward[node].op.As<QuantizeFloat8>();
    if (op == nullptr || (transposed && !op->transposed_CR.present())) continue;
    if (IsSameView(op->x_RC, x)) return op;
  }
  return nullptr;
}

void GraphBuilder::OnBackward(std::function<void(GradientBuilder&)> rule) {
  if (options_.mode == GraphMode::kTraining) rules_.push_back(std::move(rule));
}

void GraphBuilder::MarkSublayerInput(const Tensor& tensor) {
  if (IsOwn(tensor)) unit().values[tensor.where.symbol].sublayer_input = true;
}

void GraphBuilder::Fail(absl::Status status) { status_.Update(status); }

ValueId GraphBuilder::AddValue(Value value) {
  unit().values.push_back(std::move(value));
  const ValueId id = static_cast<ValueId>(unit().values.size()) - 1;
  unit().values[id].tensor.where = {.symbol = id, .unit_mark = mark_};
  return id;
}

Tensor GraphBuilder::View(ValueId id) { return unit().values[id].tensor; }

}  // namespace shale
