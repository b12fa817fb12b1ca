#include "absl/strings/str_cat.h"
#include "engine/api/layers.h"
#include "kernels/ops/norm.h"

namespace shale {

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
