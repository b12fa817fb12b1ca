#include "kernels/ops/attention.h"

#include <cmath>

#include "engine/graph/layers.h"
#include "kernels/ops/rope.h"

namespace shale {

void ApplyRope(GraphBuilder& b, const Tensor& x_BSHD, double theta, const RopeScaling& scaling) {
  const Tensor x = b.Operand(x_BSHD, 4, "ApplyRope");
  b.Emit(Rope{.x_BSHD = x, .theta = theta, .scaling = scaling});
  b.OnBackward([=](GradientBuilder& g) {
    if (!g.HasGradient(x)) return;
    g.Emit(Rope{.x_BSHD = g.GradientStorage(x), .theta = theta, .scaling = scaling, .inverse = true});
  });
}

Tensor Attention(GraphBuilder& b, const Tensor& q_BSHD, const Tensor& k_BSGD, const Tensor& v_BSGD, int64_t window) {
  const Tensor q = b.Operand(q_BSHD, 4, "Attention"), k = b.Operand(k_BSGD, 4, "Attention"),
               v = b.Operand(v_BSGD, 4, "Attention");
  const int64_t B = q.dim(0), S = q.dim(1), H = q.dim(2), D = q.dim(3);
  const float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(D)));
  const Tensor out = b.NewActivation("attention.out", q.dtype, {B * S, H * D});
  const Tensor lse = b.NewActivation("attention.lse", DType::kFloat32, {B, H, S});
  const auto heads = [=](const Tensor& t) { return t.SplitLast(H, D).SplitFirst(B); };
  b.Emit(AttentionForward{
      .q_BSHD = q, .k_BSGD = k, .v_BSGD = v, .out_BSHD = heads(out), .lse_BHS = lse, .scale = scale, .window = window});
  b.OnBackward([=](GradientBuilder& g) {
    if (!g.HasGradient(out)) return;
    g.Emit(AttentionBackward{.q_BSHD = q,
                             .k_BSGD = k,
                             .v_BSGD = v,
                             .out_BSHD = heads(out),
                             .lse_BHS = lse,
                             .d_out_BSHD = heads(g.Gradient(out)),
                             .d_q_BSHD = g.GradientStorage(q),
                             .d_k_BSGD = g.GradientStorage(k),
                             .d_v_BSGD = g.GradientStorage(v),
                             .scale = scale,
                             .window = window});
  });
  return out;
}

}  // namespace shale
