// The gradients of one unit: where they lie, and the ops that compute them.
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/api/graph_builder.h"
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

Tensor GraphBuilder::ParameterGradient(const Tensor& parameter) {
  const Value& source = unit().values[parameter.where.symbol];
  SHALE_CHECK(source.role == ValueRole::kParameter) << source.name;
  if (!source.needs_gradient) return {};
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

bool GraphBuilder::NeedsGradient(const Tensor& value) {
  return IsOwn(value) && unit().values[value.where.symbol].needs_gradient;
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

Tensor GradientBuilder::NewTemporary(absl::string_view name, DType dtype, std::initializer_list<int64_t> shape) {
  return builder_.View(builder_.AddValue({.name = absl::StrCat(builder_.unit().name, ".", name),
                                          .role = ValueRole::kGradient,
                                          .tensor = Tensor::Contiguous(dtype, shape)}));
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
  if (value.elements() != builder_.View(id).elements()) {
    return builder_.Fail(absl::InvalidArgumentError(
        absl::StrCat("unit ", builder_.unit().name, ": a layer reads a part of ", builder_.unit().values[id].name,
                     "; only Attention, HeadNorm and ApplyRope can read a part of an activation")));
  }
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
