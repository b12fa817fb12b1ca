#include "engine/graph/layers.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/matmul.h"

namespace shale {

Tensor Embedding(GraphBuilder& b, ParameterId weight_VC, std::optional<ParameterId> positions_PC) {
  const Tensor tokens = b.UseData(ValueRole::kInputs);
  const Tensor weight = b.UseParameter(weight_VC);
  const Tensor positions = positions_PC ? b.UseParameter(*positions_PC) : Tensor();
  const Tensor out = b.NewActivation("out", b.options().compute_dtype, {b.tokens(), weight.dim(1)});
  const Tensor ids = positions_PC ? PositionIdsOf(b) : Tensor();
  b.Emit(EmbeddingForward{.tokens_BS = tokens,
                          .weight_VC = weight,
                          .positions_PC = positions,
                          .out_TC = out,
                          .position_ids_BS = ids,
                          .begins_B = positions_PC ? BeginsOf(b) : Tensor()});
  b.OnBackward([=](GradientBuilder& g) {
    if (!g.HasGradient(out)) return;
    const Tensor d_out = g.Gradient(out);
    if (g.NeedsGradient(weight)) {
      g.Emit(EmbeddingBackward{.tokens_BS = tokens, .d_out_TC = d_out, .d_weight_VC = g.ParameterGradient(weight)});
    }
    if (!g.NeedsGradient(positions)) return;
    if (ids.present()) {
      g.Emit(EmbeddingBackward{.tokens_BS = ids, .d_out_TC = d_out, .d_weight_VC = g.ParameterGradient(positions)});
      return;
    }
    // The position table is added to every sequence like a bias to every row. Rows past S are not used. This op does
    // not write their gradient, which stays zero.
    const int64_t B = tokens.dim(0), S = tokens.dim(1), C = out.dim(1);
    g.Emit(BiasBackward{.d_out_TN = d_out.Reshape({B, S * C}),
                        .d_bias_N = g.ParameterGradient(positions).Slice(0, 0, S).Reshape({S * C})});
  });
  return out;
}

Tensor Features(GraphBuilder& b, int64_t features) {
  const Tensor data = b.UseRows(ValueRole::kFeatures, features);
  if (b.options().compute_dtype == data.dtype) return data;
  const Tensor narrow = b.NewActivation("features", b.options().compute_dtype, {data.dim(0), data.dim(1)},
                                        /*cheap=*/true);
  b.Emit(Copy{.from = data, .to = narrow});
  return narrow;
}

Tensor Linear(GraphBuilder& b, const Tensor& x_TK, ParameterId weight_NK, std::optional<ParameterId> bias_N,
              absl::string_view name) {
  const Tensor x = b.Operand(x_TK, 2, "Linear");
  const Tensor weight = b.UseParameter(weight_NK);
  const Tensor bias = bias_N ? b.UseParameter(*bias_N) : Tensor();
  const Tensor y = b.NewActivation(name, b.options().compute_dtype, {x.dim(0), weight.dim(0)});
  b.Emit(MatMul{.a = x, .b = weight, .bias_N = bias, .c_MN = y, .transpose_b = true});
  b.OnBackward([=](GradientBuilder& g) {
    if (!g.HasGradient(y)) return;
    const Tensor d_y = g.Gradient(y);
    if (g.NeedsGradient(x)) {
      const Tensor d_x = g.NewGradient(x);
      g.Emit(MatMul{.a = d_y, .b = weight, .c_MN = d_x});
      g.Contribute(x, d_x);
    }
    if (g.NeedsGradient(weight)) {
      g.Emit(MatMul{.a = d_y, .b = x, .c_MN = g.ParameterGradient(weight), .transpose_a = true});
    }
    if (g.NeedsGradient(bias)) g.Emit(BiasBackward{.d_out_TN = d_y, .d_bias_N = g.ParameterGradient(bias)});
  });
  return y;
}

}  // namespace shale
