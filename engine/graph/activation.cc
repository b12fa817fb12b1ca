#include "kernels/ops/activation.h"

#include "engine/api/layers.h"

namespace shale {

Tensor SwiGlu(GraphBuilder& b, const Tensor& gate_up_T2F) {
  const Tensor gate_up = b.Operand(gate_up_T2F, 2, "SwiGlu");
  const Tensor y = b.NewActivation("ffn.act", gate_up.dtype, {gate_up.dim(0), gate_up.dim(1) / 2}, /*cheap=*/true);
  b.Emit(SwiGluForward{.gate_up_T2F = gate_up, .y_TF = y});
  b.OnBackward([=](GradientBuilder& g) {
    if (!g.HasGradient(y)) return;
    const Tensor d_gate_up = g.NewGradient(gate_up);
    const SwiGluBackward op{.gate_up_T2F = gate_up, .d_y_TF = g.Gradient(y), .d_gate_up_T2F = d_gate_up};
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

}  // namespace shale
