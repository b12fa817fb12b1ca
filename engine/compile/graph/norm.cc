#include "kernels/ops/norm.h"

#include "absl/strings/str_cat.h"
#include "engine/api/layers.h"
#include "kernels/ops/flat.h"

namespace shale {
namespace {

// The tensors of one norm. `source` is what is normalized: the sum of x and the residual, or x.
struct NormTensors {
  Tensor x, residual, source, y, weight, bias, mean, rstd;
  float offset = 0;  // RmsNormForward::weight_offset.
};

void EmitNormGradient(GradientBuilder& g, const NormTensors& n) {
  if (!g.HasGradient(n.y)) return;
  const Tensor d_y = g.Gradient(n.y);
  const bool view = n.x.rank == 3;
  // The norm's backward op adds the gradient that the residual stream has so far to the one that it computes.
  const Tensor d_residual = view ? Tensor() : g.TakeGradient(n.source).value_or(Tensor());
  const Tensor d_x = view ? g.GradientStorage(n.source) : g.NewGradient(n.source);
  if (n.bias.present()) {
    g.Emit(LayerNormBackward{.d_y = d_y,
                             .x = n.source,
                             .weight_C = n.weight,
                             .mean_R = n.mean,
                             .rstd_R = n.rstd,
                             .d_residual = d_residual,
                             .d_x = d_x,
                             .d_weight_C = g.ParameterGradient(n.weight),
                             .d_bias_C = g.ParameterGradient(n.bias)});
  } else {
    g.Emit(RmsNormBackward{.d_y = d_y,
                           .x = n.source,
                           .weight_C = n.weight,
                           .rstd_R = n.rstd,
                           .d_residual = d_residual,
                           .d_x = d_x,
                           .d_weight_C = g.ParameterGradient(n.weight),
                           .weight_offset = n.offset});
  }
  if (view) return;
  g.Contribute(n.x, d_x);
  if (n.residual.present()) g.Contribute(n.residual, d_x);
}

// Emits one norm, with its statistics and its gradient rule. `residual` and `sum` are both absent or both given. The
// norm of `sum` is computed if it is given, else the norm of x.
void EmitNorm(GraphBuilder& b, const Tensor& x, const Tensor& residual, const Tensor& sum, const Tensor& y,
              const NormParameters& norm, absl::string_view name) {
  const Tensor source = sum.present() ? sum : x;
  const int64_t rows = source.elements() / source.dim(-1);
  const Tensor weight = b.UseParameter(norm.weight);
  const Tensor bias = norm.bias ? b.UseParameter(*norm.bias) : Tensor();
  const Tensor mean =
      norm.bias ? b.NewActivation(absl::StrCat(name, ".mean"), DType::kFloat32, {rows}, /*cheap=*/true) : Tensor();
  const Tensor rstd = b.NewActivation(absl::StrCat(name, ".rstd"), DType::kFloat32, {rows}, /*cheap=*/true);
  const float epsilon = static_cast<float>(norm.epsilon), offset = norm.adds_one ? 1.0f : 0.0f;
  const auto forward = [&](const Tensor& from, const Tensor& add, const Tensor& total) -> Op {
    if (norm.bias) {
      return LayerNormForward{.x = from,
                              .residual = add,
                              .weight_C = weight,
                              .bias_C = bias,
                              .sum = total,
                              .y = y,
                              .mean_R = mean,
                              .rstd_R = rstd,
                              .epsilon = epsilon};
    }
    return RmsNormForward{.x = from,
                          .residual = add,
                          .weight_C = weight,
                          .sum = total,
                          .y = y,
                          .rstd_R = rstd,
                          .epsilon = epsilon,
                          .weight_offset = offset};
  };
  std::optional<Op> from_sum;
  if (sum.present()) from_sum = forward(sum, Tensor(), Tensor());
  b.Emit(forward(x, residual, sum), std::move(from_sum));
  b.OnBackward([n = NormTensors{x, residual, source, y, weight, bias, mean, rstd, offset}](GradientBuilder& g) {
    EmitNormGradient(g, n);
  });
}

}  // namespace

Tensor Norm(GraphBuilder& b, const Tensor& x_TC, const NormParameters& norm, absl::string_view name) {
  const Tensor x = b.Operand(x_TC, 2, "Norm");
  const Tensor y = b.NewActivation(name, x.dtype, {x.dim(0), x.dim(1)}, /*cheap=*/true);
  EmitNorm(b, x, Tensor(), Tensor(), y, norm, name);
  return y;
}

std::pair<Tensor, Tensor> AddNorm(GraphBuilder& b, const Tensor& x_TC, const Tensor& residual_TC,
                                  const NormParameters& norm, absl::string_view sum_name, absl::string_view name) {
  const Tensor x = b.Operand(x_TC, 2, "AddNorm"), residual = b.Operand(residual_TC, 2, "AddNorm");
  const Tensor sum = b.NewActivation(sum_name, x.dtype, {x.dim(0), x.dim(1)});
  b.MarkSublayerInput(sum);
  const Tensor y = b.NewActivation(name, x.dtype, {x.dim(0), x.dim(1)}, /*cheap=*/true);
  EmitNorm(b, x, residual, sum, y, norm, name);
  return {sum, y};
}

void HeadNorm(GraphBuilder& b, const Tensor& x_THD, const NormParameters& norm, const Tensor& y_THD,
              absl::string_view name) {
  EmitNorm(b, b.Operand(x_THD, 3, "HeadNorm"), Tensor(), Tensor(), b.Operand(y_THD, 3, "HeadNorm"), norm, name);
}

Tensor AddResidual(GraphBuilder& b, const Tensor& a_TC, const Tensor& b_TC, absl::string_view name) {
  const Tensor x = b.Operand(a_TC, 2, "AddResidual"), y = b.Operand(b_TC, 2, "AddResidual");
  const Tensor out = b.NewActivation(name, x.dtype, {x.dim(0), x.dim(1)});
  b.Emit(Add{.a = x, .b = y, .out = out});
  b.OnBackward([=](GradientBuilder& g) {
    if (!g.HasGradient(out)) return;
    g.Contribute(x, g.Gradient(out));
    g.Contribute(y, g.Gradient(out));
  });
  return out;
}

Tensor GroupNorm(GraphBuilder& b, const Tensor& x_TC, int64_t groups, const NormParameters& norm,
                 absl::string_view name) {
  const Tensor x = b.Operand(x_TC, 2, "GroupNorm");
  const int64_t T = x.dim(0), C = x.dim(1);
  const Tensor y = b.NewActivation(name, x.dtype, {T, C}, /*cheap=*/true);
  if (groups < 1 || C % groups != 0) {
    b.Fail(absl::InvalidArgumentError(
        absl::StrCat(name, ": ", groups, " groups do not divide ", C, " columns; use a divisor of the columns")));
    return y;
  }
  if (!norm.bias) {
    b.Fail(absl::InvalidArgumentError(absl::StrCat(name, ": GroupNorm needs a bias; found only a weight")));
    return y;
  }
  const int64_t D = C / groups;
  const Tensor weight = b.UseParameter(norm.weight), bias = b.UseParameter(*norm.bias);
  const Tensor mean = b.NewActivation(absl::StrCat(name, ".mean"), DType::kFloat32, {groups, T}, /*cheap=*/true);
  const Tensor rstd = b.NewActivation(absl::StrCat(name, ".rstd"), DType::kFloat32, {groups, T}, /*cheap=*/true);
  const auto columns = [D](const Tensor& t, int64_t group) {
    return t.present() ? t.Slice(t.rank - 1, group * D, D) : t;
  };
  const auto statistics = [T](const Tensor& t, int64_t group) { return t.Slice(0, group, 1).Reshape({T}); };
  for (int64_t group = 0; group < groups; ++group) {
    b.Emit(LayerNormForward{.x = columns(x, group),
                            .weight_C = columns(weight, group),
                            .bias_C = columns(bias, group),
                            .y = columns(y, group),
                            .mean_R = statistics(mean, group),
                            .rstd_R = statistics(rstd, group),
                            .epsilon = static_cast<float>(norm.epsilon)});
  }
  b.OnBackward([=](GradientBuilder& g) {
    if (!g.HasGradient(y)) return;
    const Tensor d_y = g.Gradient(y), d_residual = g.TakeGradient(x).value_or(Tensor()), d_x = g.NewGradient(x);
    for (int64_t group = 0; group < groups; ++group) {
      g.Emit(LayerNormBackward{.d_y = columns(d_y, group),
                               .x = columns(x, group),
                               .weight_C = columns(weight, group),
                               .mean_R = statistics(mean, group),
                               .rstd_R = statistics(rstd, group),
                               .d_residual = columns(d_residual, group),
                               .d_x = columns(d_x, group),
                               .d_weight_C = columns(g.ParameterGradient(weight), group),
                               .d_bias_C = columns(g.ParameterGradient(bias), group)});
    }
    g.Contribute(x, d_x);
  });
  return y;
}

}  // namespace shale
