#include "engine/api/layers.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/dtype.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

// What an adapter has in a graph.
struct Adapted {
  Tensor a_RK, b_NR;
  Tensor narrow_TR;  // scale (x A^T)
  int64_t column = 0;
  float scale = 1;
};

// Adds what the adapter computes to y, whose other terms have been computed.
Adapted Adapt(GraphBuilder& b, const Tensor& x_TK, const LowRankAdapter& adapter, const Tensor& y) {
  Adapted part{.a_RK = b.UseParameter(adapter.a_RK),
               .b_NR = b.UseParameter(adapter.b_NR),
               .column = adapter.column,
               .scale = static_cast<float>(adapter.scale)};
  part.narrow_TR = b.NewActivation(adapter.name, y.dtype, {y.dim(0), part.a_RK.dim(0)});
  const Tensor y_TN = Slice(b, y, 1, part.column, part.b_NR.dim(0));
  b.Emit(MatMul{.a = x_TK, .b = part.a_RK, .c_MN = part.narrow_TR, .transpose_b = true, .scale = part.scale});
  b.Emit(MatMul{.a = part.narrow_TR, .b = part.b_NR, .c_MN = y_TN, .transpose_b = true, .accumulate = true});
  return part;
}

// Adds the adapter's part of the gradient to d_x, unless that is absent.
void AdaptedBackward(GradientBuilder& g, const Adapted& part, const Tensor& x, const Tensor& d_y, const Tensor& d_x) {
  const Tensor d_y_TN = d_y.Slice(1, part.column, part.b_NR.dim(0));
  if (g.NeedsGradient(part.b_NR)) {
    g.Emit(MatMul{.a = d_y_TN, .b = part.narrow_TR, .c_MN = g.ParameterGradient(part.b_NR), .transpose_a = true});
  }
  if (!g.NeedsGradient(part.narrow_TR)) return;
  // This is the gradient of x A^T: it has the scale already.
  const Tensor d_narrow_TR = g.NewGradient(part.narrow_TR);
  g.Emit(MatMul{.a = d_y_TN, .b = part.b_NR, .c_MN = d_narrow_TR, .scale = part.scale});
  if (g.NeedsGradient(part.a_RK)) {
    g.Emit(MatMul{.a = d_narrow_TR, .b = x, .c_MN = g.ParameterGradient(part.a_RK), .transpose_a = true});
  }
  if (d_x.present()) g.Emit(MatMul{.a = d_narrow_TR, .b = part.a_RK, .c_MN = d_x, .accumulate = true});
}

// Records that a view does not fit, and returns a tensor of the current unit that has `rank` dimensions.
Tensor DoesNotFit(GraphBuilder& b, const Tensor& x, int rank, absl::string_view view) {
  b.Fail(absl::InvalidArgumentError(absl::StrCat("a view of ", x.ToString(), " does not fit: ", view)));
  return b.Operand(Tensor(), rank, "a view");
}

}  // namespace

Tensor Embedding(GraphBuilder& b, ParameterId weight_VC, std::optional<ParameterId> positions_PC, double scale) {
  const Tensor tokens = b.UseData(StepItem::kInputs);
  const Tensor weight = b.UseParameter(weight_VC);
  const Tensor positions = positions_PC ? b.UseParameter(*positions_PC) : Tensor();
  const Tensor out = b.NewActivation("out", weight.dtype, {b.tokens(), weight.dim(1)});
  const Tensor ids = positions_PC ? PositionIdsOf(b) : Tensor();
  float factor = static_cast<float>(scale);
  if (out.dtype == DType::kBFloat16) factor = ToFloat(RoundToBFloat16(factor));
  if (out.dtype == DType::kFloat16) factor = ToFloat(RoundToFloat16(factor));
  b.Emit(EmbeddingForward{.tokens_BS = tokens,
                          .weight_VC = weight,
                          .positions_PC = positions,
                          .out_TC = out,
                          .position_ids_BS = ids,
                          .begins_B = positions_PC ? BeginsOf(b) : Tensor(),
                          .scale = factor});
  b.OnBackward([=](GradientBuilder& g) {
    if (!g.HasGradient(out)) return;
    const Tensor d_out = g.Gradient(out);
    if (g.NeedsGradient(weight)) {
      g.Emit(EmbeddingBackward{
          .tokens_BS = tokens, .d_out_TC = d_out, .d_weight_VC = g.ParameterGradient(weight), .scale = factor});
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
  const Tensor data = b.UseColumns(StepItem::kFeatures, features);
  if (b.options().compute_dtype == data.dtype) return data;
  const Tensor narrow = b.NewActivation("features", b.options().compute_dtype, {data.dim(0), data.dim(1)},
                                        /*cheap=*/true);
  b.Emit(Copy{.from = data, .to = narrow});
  return narrow;
}

Tensor Cast(GraphBuilder& b, const Tensor& x_TC, DType dtype, absl::string_view name) {
  const Tensor x = b.Operand(x_TC, 2, "Cast");
  if (x.dtype == dtype) return x;
  const Tensor y = b.NewActivation(name, dtype, {x.dim(0), x.dim(1)}, /*cheap=*/true);
  b.Emit(Copy{.from = x, .to = y});
  b.OnBackward([=](GradientBuilder& g) {
    if (!g.HasGradient(y)) return;
    const Tensor d_x = g.NewGradient(x);
    g.Emit(Copy{.from = g.Gradient(y), .to = d_x});
    g.Contribute(x, d_x);
  });
  return y;
}

namespace {

// What a quantization writes, and the scales that it writes with it.
struct Float8Forms {
  Float8Scales scales;
  DType format = DType::kFloat8E4M3;
  bool out = true, transposed = true;
};

// Returns an op that quantizes `matrix`, whose maximum is known or absent, and lets `emit` emit it. make(name, dtype,
// shape) returns a new tensor.
template <class Make, class Emit>
QuantizeFloat8 Quantize(const Tensor& matrix, const Float8Forms& forms, const Tensor& maximum, const std::string& name,
                        const Make& make, const Emit& emit) {
  const int64_t R = matrix.dim(0), C = matrix.dim(1);
  const bool one = forms.scales == Float8Scales::kOne, finds = one && !maximum.present();
  const auto parts = [&](const std::string& of, int64_t rows, int64_t columns) {
    const Float8ScaleMatrix shape = Float8ScaleMatrix::Of(forms.scales, rows, columns);
    return one ? Tensor() : make(of, DType::kFloat32, {shape.rows, shape.columns});
  };
  QuantizeFloat8 op{.x_RC = matrix, .maximum_1 = maximum, .scales = forms.scales};
  if (finds) op.maximum_1 = make(name + ".maximum", DType::kFloat32, {1});
  if (one) op.scale_1 = make(name + (finds ? ".scale" : ".scale.again"), DType::kFloat32, {1});
  if (forms.out) {
    op.out_RC = make(name + ".fp8", forms.format, {R, C});
    op.out_scales = parts(name + ".fp8.scales", R, C);
  }
  if (forms.transposed) {
    op.transposed_CR = make(name + ".fp8.transposed", forms.format, {C, R});
    op.transposed_scales = parts(name + ".fp8.transposed.scales", C, R);
  }
  if (finds) emit(AbsMax{.x_RC = matrix, .maximum_1 = op.maximum_1});
  emit(op);
  return op;
}

// Returns the op that quantizes `matrix` in forward: the one that has done so for another layer, or a new one.
QuantizeFloat8 Quantized(GraphBuilder& b, const Tensor& matrix, const Float8Forms& forms, const std::string& name) {
  if (const QuantizeFloat8* done = b.FindQuantized(matrix, forms.transposed)) return *done;
  const auto make = [&](const std::string& of, DType dtype, std::initializer_list<int64_t> shape) {
    return b.NewActivation(of, dtype, shape, /*cheap=*/shape.size() > 1);
  };
  return Quantize(matrix, forms, /*maximum=*/Tensor(), name, make, [&](Op op) { b.Emit(std::move(op)); });
}

// The input and the weight of a linear layer that multiplies in fp8 ([Note: fp8 matmuls]).
struct Float8Operands {
  QuantizeFloat8 x, weight;
};

Float8Operands MultiplyFloat8(GraphBuilder& b, const Tensor& x, const Tensor& weight, const Tensor& bias,
                              const Tensor& y, absl::string_view name) {
  const bool trains = b.options().mode == GraphMode::kTraining && b.NeedsGradient(weight);
  const bool blockwise = b.options().float8_blockwise;
  const Float8Scales of_input = blockwise ? Float8Scales::kTiles : Float8Scales::kOne,
                     of_weight = blockwise ? Float8Scales::kBlocks : Float8Scales::kOne;
  const Float8Operands operands = {
      Quantized(b, x, {.scales = of_input, .transposed = trains}, absl::StrCat(name, ".input")),
      Quantized(b, weight, {.scales = of_weight, .transposed = false}, absl::StrCat(name, ".weight"))};
  b.Emit(MatMul{.a = operands.x.out_RC,
                .b = operands.weight.out_RC,
                .bias_N = bias,
                .c_MN = y,
                .scale_a = operands.x.scale_of_out(),
                .scale_b = operands.weight.scale_of_out(),
                .transpose_b = true,
                .fast_accumulation = !blockwise,
                .scales = of_weight});
  return operands;
}

// Computes the gradient of the input, unless d_x is absent, and that of the weight, unless d_weight is.
void Float8Backward(GradientBuilder& g, const Float8Operands& forward, const Tensor& d_y, const Tensor& d_x,
                    const Tensor& d_weight, DType format, const std::string& name) {
  if (!d_x.present() && !d_weight.present()) return;
  const auto make = [&](const std::string& of, DType dtype, std::initializer_list<int64_t> shape) {
    return g.NewTemporary(of, dtype, shape);
  };
  const auto emit = [&](Op op) { g.Emit(std::move(op)); };
  const QuantizeFloat8 gradient = Quantize(
      d_y, {.scales = forward.x.scales, .format = format, .out = d_x.present(), .transposed = d_weight.present()},
      /*maximum=*/Tensor(), name + ".gradient", make, emit);
  if (d_x.present()) {
    const QuantizeFloat8 weight = Quantize(forward.weight.x_RC, {.scales = forward.weight.scales, .out = false},
                                           forward.weight.maximum_1, name + ".weight", make, emit);
    g.Emit(MatMul{.a = gradient.out_RC,
                  .b = weight.transposed_CR,
                  .c_MN = d_x,
                  .scale_a = gradient.scale_of_out(),
                  .scale_b = weight.scale_of_transposed(),
                  .transpose_b = true,
                  .scales = weight.scales});
  }
  if (!d_weight.present()) return;
  g.Emit(MatMul{.a = gradient.transposed_CR,
                .b = forward.x.transposed_CR,
                .c_MN = d_weight,
                .scale_a = gradient.scale_of_transposed(),
                .scale_b = forward.x.scale_of_transposed(),
                .transpose_b = true,
                .scales = forward.x.scales});
}

// Computes the same gradients in the compute dtype.
void LinearBackward(GradientBuilder& g, const Tensor& x, const Tensor& weight, const Tensor& d_y, const Tensor& d_x,
                    const Tensor& d_weight) {
  if (d_x.present()) g.Emit(MatMul{.a = d_y, .b = weight, .c_MN = d_x});
  if (d_weight.present()) g.Emit(MatMul{.a = d_y, .b = x, .c_MN = d_weight, .transpose_a = true});
}

}  // namespace

Tensor Linear(GraphBuilder& b, const Tensor& x_TK, ParameterId weight_NK, std::optional<ParameterId> bias_N,
              absl::string_view name, absl::Span<const LowRankAdapter> adapters) {
  const Tensor x = b.Operand(x_TK, 2, "Linear");
  const Tensor weight = b.UseParameter(weight_NK);
  const Tensor bias = bias_N ? b.UseParameter(*bias_N) : Tensor();
  const Tensor y = b.NewActivation(name, x.dtype, {x.dim(0), weight.dim(0)});
  const bool trains = b.options().mode == GraphMode::kTraining && b.NeedsGradient(weight);
  std::optional<Float8Operands> float8;
  if (b.MultipliesInFloat8(x, weight, /*rows=*/trains, name)) {
    float8 = MultiplyFloat8(b, x, weight, bias, y, name);
  } else {
    b.Emit(MatMul{.a = x, .b = weight, .bias_N = bias, .c_MN = y, .transpose_b = true});
  }
  std::vector<Adapted> adapted;
  for (const LowRankAdapter& adapter : adapters) adapted.push_back(Adapt(b, x, adapter, y));
  b.OnBackward([=, format = b.options().float8_gradients, name = std::string(name)](GradientBuilder& g) {
    if (!g.HasGradient(y)) return;
    const Tensor d_y = g.Gradient(y);
    const Tensor d_x = g.NeedsGradient(x) ? g.NewGradient(x) : Tensor();
    const Tensor d_weight = g.ParameterGradient(weight);
    if (float8) {
      Float8Backward(g, *float8, d_y, d_x, d_weight, format, name);
    } else {
      LinearBackward(g, x, weight, d_y, d_x, d_weight);
    }
    if (g.NeedsGradient(bias)) g.Emit(BiasBackward{.d_out_TN = d_y, .d_bias_N = g.ParameterGradient(bias)});
    for (const Adapted& part : adapted) AdaptedBackward(g, part, x, d_y, d_x);
    if (d_x.present()) g.Contribute(x, d_x);
  });
  return y;
}

namespace {

Tensor Gated(GraphBuilder& b, const Tensor& gate_up_T2F, GateKind gate, absl::string_view layer) {
  const Tensor gate_up = b.Operand(gate_up_T2F, 2, layer);
  const Tensor y = b.NewActivation("ffn.act", gate_up.dtype, {gate_up.dim(0), gate_up.dim(1) / 2}, /*cheap=*/true);
  b.Emit(SwiGluForward{.gate_up_T2F = gate_up, .y_TF = y, .gate = gate});
  b.OnBackward([=](GradientBuilder& g) {
    if (!g.HasGradient(y)) return;
    const Tensor d_gate_up = g.NewGradient(gate_up);
    const SwiGluBackward op{.gate_up_T2F = gate_up, .d_y_TF = g.Gradient(y), .d_gate_up_T2F = d_gate_up, .gate = gate};
    SwiGluBackward recomputing = op;
    recomputing.y_TF = y;
    g.Emit(op, recomputing);
    g.Contribute(gate_up, d_gate_up);
  });
  return y;
}

Tensor Gelu(GraphBuilder& b, const Tensor& x_TF, GeluKind kind) {
  const Tensor x = b.Operand(x_TF, 2, "Gelu");
  const Tensor y = b.NewActivation("ffn.act", x.dtype, {x.dim(0), x.dim(1)}, /*cheap=*/true);
  b.Emit(GeluForward{.x_TF = x, .y_TF = y, .kind = kind});
  b.OnBackward([=](GradientBuilder& g) {
    if (!g.HasGradient(y)) return;
    const Tensor d_x = g.NewGradient(x);
    const GeluBackward op{.x_TF = x, .d_y_TF = g.Gradient(y), .d_x_TF = d_x, .kind = kind};
    GeluBackward recomputing = op;
    recomputing.y_TF = y;
    g.Emit(op, recomputing);
    g.Contribute(x, d_x);
  });
  return y;
}

}  // namespace

Tensor SwiGlu(GraphBuilder& b, const Tensor& gate_up_T2F) { return Gated(b, gate_up_T2F, GateKind::kSilu, "SwiGlu"); }

Tensor GeGlu(GraphBuilder& b, const Tensor& gate_up_T2F) { return Gated(b, gate_up_T2F, GateKind::kGeluTanh, "GeGlu"); }

Tensor GeluErf(GraphBuilder& b, const Tensor& x_TF) { return Gelu(b, x_TF, GeluKind::kErf); }

Tensor GeluTanh(GraphBuilder& b, const Tensor& x_TF) { return Gelu(b, x_TF, GeluKind::kTanh); }

Tensor Reshape(GraphBuilder& b, const Tensor& x, std::initializer_list<int64_t> shape) {
  int64_t elements = 1;
  bool fits = x.present() && x.contiguous() && shape.size() >= 1 && shape.size() <= Tensor::kMaxRank;
  for (const int64_t n : shape) fits = fits && n >= 1 && !__builtin_mul_overflow(elements, n, &elements);
  if (fits && elements == x.elements()) return x.Reshape(shape);
  std::string sizes;
  for (const int64_t n : shape) absl::StrAppend(&sizes, sizes.empty() ? "" : ", ", n);
  return DoesNotFit(b, x, static_cast<int>(shape.size()), absl::StrCat("Reshape to [", sizes, "]"));
}

Tensor Slice(GraphBuilder& b, const Tensor& x, int axis, int64_t begin, int64_t count) {
  if (axis >= 0 && axis < x.rank && begin >= 0 && count >= 1 && begin <= x.dim(axis) && count <= x.dim(axis) - begin) {
    return x.Slice(axis, begin, count);
  }
  return DoesNotFit(b, x, x.rank, absl::StrCat("Slice of ", count, " from ", begin, " on along dimension ", axis));
}

Tensor SplitLast(GraphBuilder& b, const Tensor& x, int64_t count) {
  if (x.rank >= 1 && x.rank < Tensor::kMaxRank && count >= 1 && x.dim(-1) % count == 0 && x.stride(-1) == 1) {
    return x.SplitLast(count, x.dim(-1) / count);
  }
  return DoesNotFit(b, x, x.rank + 1, absl::StrCat("SplitLast into ", count));
}

Tensor SplitFirst(GraphBuilder& b, const Tensor& x, int64_t count) {
  if (x.rank >= 1 && x.rank < Tensor::kMaxRank && count >= 1 && x.dim(0) % count == 0) return x.SplitFirst(count);
  return DoesNotFit(b, x, x.rank + 1, absl::StrCat("SplitFirst into ", count));
}

}  // namespace shale
