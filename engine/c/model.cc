#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/api/graph_builder.h"
#include "engine/api/job.h"
#include "engine/api/layers.h"
#include "engine/c/calls.h"
#include "engine/c/handles.h"
#include "engine/c/jobs.h"
#include "engine/compile/graph/graph.h"
#include "kernels/check.h"
#include "kernels/ops/rope.h"

namespace shale::c {
namespace {

// A builder whose tensors are numbers, as its groups and parameters are.
struct NumberedBuilder {
  explicit NumberedBuilder(const GraphOptions& options) : builder(options) {}

  // Returns the number of a new tensor.
  int32_t Number(const Tensor& tensor) {
    tensors.push_back(tensor);
    return static_cast<int32_t>(tensors.size()) - 1;
  }

  // Returns the tensor of a number. Records an error and returns an absent tensor if there is none, which every layer
  // refuses.
  Tensor At(int32_t number) {
    if (number >= 0 && number < static_cast<int64_t>(tensors.size())) return tensors[number];
    Refuse("tensor", number);
    return Tensor();
  }
  void Refuse(absl::string_view what, int64_t number) {
    builder.Fail(absl::InvalidArgumentError(absl::StrCat("this builder has no ", what, " ", number)));
  }

  GraphBuilder builder;
  std::vector<Tensor> tensors;
};

std::optional<ParameterId> Optional(int32_t parameter) {
  if (parameter == SHALE_NONE) return std::nullopt;
  return parameter;
}

Handles<NumberedBuilder>& Builders() {
  static auto& builders = *new Handles<NumberedBuilder>(HandleKind::kBuilder, "builder");
  return builders;
}

std::string Text(const char* text) { return text == nullptr ? "" : text; }

// Returns an error of the graph with the names that functions have in this interface and in bindings, without prefixes.
absl::Status InTheseNames(const absl::Status& status) {
  const std::string message =
      absl::StrReplaceAll(status.message(), {{"AddGroup", "add_group"},
                                             {"AddNorm", "norm"},
                                             {"AddParameter", "add_parameter"},
                                             {"AddResidual", "add"},
                                             {"ApplyRope", "rope"},
                                             {"BeginUnit", "begin_unit"},
                                             {"BidirectionalAttention", "bidirectional_attention"},
                                             {"EndLastUnit", "end_last_unit"},
                                             {"EndUnit", "end_unit"},
                                             {"GraphBuilder", "builder"},
                                             {"GroupNorm", "group_norm"},
                                             {"HeadNorm", "head_norm"},
                                             {"LinearCrossEntropy", "linear_cross_entropy"},
                                             {"MeanSquaredError", "mean_squared_error"},
                                             {"SplitFirst", "split_first"},
                                             {"SplitLast", "split_last"},
                                             {"SwiGlu", "swiglu"},
                                             {"UnitInput()", "unit_input"}});
  return absl::Status(status.code(), message);
}

absl::StatusOr<ModelGraph> Build(const shale_model& model, const GraphOptions& options) {
  const auto builder = std::make_shared<NumberedBuilder>(options);
  SHALE_ASSIGN_OR_RETURN(const uint64_t handle, Builders().Add(builder));
  const shale_graph_options given = {sizeof(shale_graph_options), options.micro_batch, options.sequence_length,
                                     options.vocabulary};
  shale_error error = SHALE_INIT(shale_error);
  const absl::Status built = StatusOf(model.build(model.user, handle, &given, &error), error, "model.build");
  SHALE_RETURN_IF_ERROR(Builders().Free(handle));
  SHALE_RETURN_IF_ERROR(built);
  absl::StatusOr<ModelGraph> graph = builder->builder.Finish();
  return graph.ok() ? std::move(graph) : InTheseNames(graph.status());
}

// Calls `body` with a builder. Returns SHALE_NONE if the handle is of none, or if the builder cannot go on, for
// instance because memory ran out.
template <class Body>
int32_t With(shale_builder handle, Body&& body) {
  int32_t result = SHALE_NONE;
  Call(nullptr, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const auto used, Builders().Take(handle));
    result = body(*used);
    return absl::OkStatus();
  });
  return result;
}

// Does the same with a body that returns a tensor.
template <class Body>
int32_t Layer(shale_builder handle, Body&& body) {
  return With(handle, [&](NumberedBuilder& b) { return b.Number(body(b)); });
}

// Does the same with a body that returns nothing.
template <class Body>
void Do(shale_builder handle, Body&& body) {
  With(handle, [&](NumberedBuilder& b) {
    body(b);
    return SHALE_NONE;
  });
}

NormParameters NormOf(int32_t weight, int32_t bias, double epsilon) {
  return {.weight = weight, .bias = Optional(bias), .epsilon = epsilon};
}

}  // namespace

absl::StatusOr<CustomModel> MakeModel(const shale_model* model) {
  SHALE_ASSIGN_OR_RETURN(const shale_model taken, TakeStruct(model, "model"));
  SHALE_RETURN_IF_ERROR(Require(taken.name, "model->name"));
  if (taken.build == nullptr) return absl::InvalidArgumentError("model->build is NULL");
  return CustomModel{.name = taken.name,
                     .digest = Text(taken.digest),
                     .build = [taken](const GraphOptions& options) { return Build(taken, options); },
                     .layers = taken.layers,
                     .last_target_only = taken.last_target_only != 0,
                     .vocabulary = taken.vocabulary};
}

absl::Status GiveModel(const shale_model* model, Job& job) {
  if (model == nullptr) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(const CustomModel custom, MakeModel(model));
  return SetModel(custom, job);
}

}  // namespace shale::c

using shale::Tensor;
using shale::c::Do;
using shale::c::Layer;
using shale::c::NumberedBuilder;
using shale::c::Text;
using shale::c::With;

int32_t shale_builder_add_group(shale_builder builder, const char* name) {
  return With(builder, [&](NumberedBuilder& b) { return b.builder.AddGroup(Text(name)); });
}

int32_t shale_builder_add_parameter(shale_builder builder, int32_t group, const char* name, const int64_t* shape,
                                    int32_t dimensions, int32_t initializer, double standard_deviation) {
  return With(builder, [&](NumberedBuilder& b) {
    std::vector<int64_t> sizes;
    if (shape != nullptr && dimensions > 0 && dimensions <= Tensor::kMaxRank) sizes.assign(shape, shape + dimensions);
    if (initializer < SHALE_NORMAL || initializer > SHALE_ZEROS) b.Refuse("initializer", initializer);
    const bool normal = initializer == SHALE_NORMAL;
    return b.builder.AddParameter(group, Text(name), std::move(sizes),
                                  {normal                      ? shale::Initializer::Kind::kNormal
                                   : initializer == SHALE_ONES ? shale::Initializer::Kind::kOnes
                                                               : shale::Initializer::Kind::kZeros,
                                   normal ? standard_deviation : 0});
  });
}

void shale_builder_begin_unit(shale_builder builder, const char* name, int32_t layer) {
  Do(builder, [&](NumberedBuilder& b) { b.builder.BeginUnit(Text(name), layer); });
}

int32_t shale_builder_unit_input(shale_builder builder) {
  return Layer(builder, [](NumberedBuilder& b) { return b.builder.UnitInput(); });
}

void shale_builder_end_unit(shale_builder builder, int32_t output) {
  Do(builder, [&](NumberedBuilder& b) { b.builder.EndUnit(b.At(output)); });
}

void shale_builder_end_last_unit(shale_builder builder) {
  Do(builder, [](NumberedBuilder& b) { b.builder.EndLastUnit(); });
}

int32_t shale_layer_embedding(shale_builder builder, int32_t weight_VC, int32_t positions_PC) {
  return Layer(builder,
               [&](NumberedBuilder& b) { return Embedding(b.builder, weight_VC, shale::c::Optional(positions_PC)); });
}

int32_t shale_layer_features(shale_builder builder, int64_t features) {
  return Layer(builder, [&](NumberedBuilder& b) { return Features(b.builder, features); });
}

int32_t shale_layer_linear(shale_builder builder, int32_t x_TK, int32_t weight_NK, int32_t bias_N, const char* name) {
  return Layer(builder, [&](NumberedBuilder& b) {
    return Linear(b.builder, b.At(x_TK), weight_NK, shale::c::Optional(bias_N), Text(name));
  });
}

int32_t shale_layer_norm(shale_builder builder, int32_t x_TC, int32_t weight_C, int32_t bias_C, double epsilon,
                         const char* name) {
  return Layer(builder, [&](NumberedBuilder& b) {
    return Norm(b.builder, b.At(x_TC), shale::c::NormOf(weight_C, bias_C, epsilon), Text(name));
  });
}

int32_t shale_layer_group_norm(shale_builder builder, int32_t x_TC, int64_t groups, int32_t weight_C, int32_t bias_C,
                               double epsilon, const char* name) {
  return Layer(builder, [&](NumberedBuilder& b) {
    return GroupNorm(b.builder, b.At(x_TC), groups, shale::c::NormOf(weight_C, bias_C, epsilon), Text(name));
  });
}

void shale_layer_head_norm(shale_builder builder, int32_t x_THD, int32_t weight_D, double epsilon, int32_t y_THD,
                           const char* name) {
  Do(builder, [&](NumberedBuilder& b) {
    HeadNorm(b.builder, b.At(x_THD), {.weight = weight_D, .epsilon = epsilon}, b.At(y_THD), Text(name));
  });
}

int32_t shale_layer_reshape(shale_builder builder, int32_t x, const int64_t* shape, int32_t dimensions) {
  return Layer(builder, [&](NumberedBuilder& b) {
    const Tensor tensor = b.At(x);
    if (shape != nullptr) {
      switch (dimensions) {
        case 1: return Reshape(b.builder, tensor, {shape[0]});
        case 2: return Reshape(b.builder, tensor, {shape[0], shape[1]});
        case 3: return Reshape(b.builder, tensor, {shape[0], shape[1], shape[2]});
        case 4: return Reshape(b.builder, tensor, {shape[0], shape[1], shape[2], shape[3]});
        default: break;
      }
    }
    b.Refuse("view with this number of dimensions:", dimensions);
    return tensor;
  });
}

int32_t shale_layer_slice(shale_builder builder, int32_t x, int32_t axis, int64_t begin, int64_t count) {
  return Layer(builder, [&](NumberedBuilder& b) { return Slice(b.builder, b.At(x), axis, begin, count); });
}

int32_t shale_layer_split_last(shale_builder builder, int32_t x, int64_t count) {
  return Layer(builder, [&](NumberedBuilder& b) { return SplitLast(b.builder, b.At(x), count); });
}

int32_t shale_layer_split_first(shale_builder builder, int32_t x, int64_t count) {
  return Layer(builder, [&](NumberedBuilder& b) { return SplitFirst(b.builder, b.At(x), count); });
}

void shale_layer_rope(shale_builder builder, int32_t x_BSHD, double theta) {
  Do(builder, [&](NumberedBuilder& b) { ApplyRope(b.builder, b.At(x_BSHD), theta, shale::RopeScaling{}); });
}

int32_t shale_layer_attention(shale_builder builder, int32_t q_BSHD, int32_t k_BSGD, int32_t v_BSGD, int64_t window) {
  return Layer(builder, [&](NumberedBuilder& b) {
    return Attention(b.builder, b.At(q_BSHD), b.At(k_BSGD), b.At(v_BSGD), window);
  });
}

int32_t shale_layer_bidirectional_attention(shale_builder builder, int32_t q_BSHD, int32_t k_BSGD, int32_t v_BSGD) {
  return Layer(builder, [&](NumberedBuilder& b) {
    return BidirectionalAttention(b.builder, b.At(q_BSHD), b.At(k_BSGD), b.At(v_BSGD));
  });
}

int32_t shale_layer_swiglu(shale_builder builder, int32_t gate_up_T2F) {
  return Layer(builder, [&](NumberedBuilder& b) { return SwiGlu(b.builder, b.At(gate_up_T2F)); });
}

int32_t shale_layer_gelu(shale_builder builder, int32_t x_TF, int32_t tanh) {
  return Layer(builder, [&](NumberedBuilder& b) {
    return tanh != 0 ? GeluTanh(b.builder, b.At(x_TF)) : GeluErf(b.builder, b.At(x_TF));
  });
}

int32_t shale_layer_add(shale_builder builder, int32_t a_TC, int32_t b_TC, const char* name) {
  return Layer(builder, [&](NumberedBuilder& b) { return AddResidual(b.builder, b.At(a_TC), b.At(b_TC), Text(name)); });
}

void shale_layer_linear_cross_entropy(shale_builder builder, int32_t x_RC, int32_t weight_VC, int32_t bias_V) {
  Do(builder,
     [&](NumberedBuilder& b) { LinearCrossEntropy(b.builder, b.At(x_RC), weight_VC, shale::c::Optional(bias_V)); });
}

void shale_layer_mean_squared_error(shale_builder builder, int32_t x_RD) {
  Do(builder, [&](NumberedBuilder& b) { MeanSquaredError(b.builder, b.At(x_RD)); });
}
