#include "kernels/ops/attention.h"

#include <cmath>

#include "engine/api/layers.h"
#include "kernels/ops/rope.h"

namespace shale {

Tensor PositionIdsOf(GraphBuilder& b) {
  return b.options().position_ids ? b.UseData(StepItem::kPositionIds) : Tensor();
}

Tensor BeginsOf(GraphBuilder& b) { return b.options().cache.positions > 0 ? b.UseData(StepItem::kBegins) : Tensor(); }

void ApplyRope(GraphBuilder& b, const Tensor& x_BSHD, double theta, const RopeScaling& scaling) {
  const Tensor x = b.Operand(x_BSHD, 4, "ApplyRope");
  const Tensor ids = PositionIdsOf(b);
  b.Emit(Rope{.x_BSHD = x, .position_ids_BS = ids, .begins_B = BeginsOf(b), .theta = theta, .scaling = scaling});
  b.OnBackward([=](GradientBuilder& g) {
    if (!g.HasGradient(x)) return;
    g.Emit(Rope{
        .x_BSHD = g.GradientStorage(x), .position_ids_BS = ids, .theta = theta, .scaling = scaling, .inverse = true});
  });
}

namespace {

// The keys that a query sees, and their scores.
struct Seen {
  int64_t window = 0;
  bool causal = true;
  AttentionScores scores;
};

Tensor Attend(GraphBuilder& b, const Tensor& q_BSHD, const Tensor& k_BSGD, const Tensor& v_BSGD, const Seen& seen,
              absl::string_view layer) {
  const Tensor q = b.Operand(q_BSHD, 4, layer), k = b.Operand(k_BSGD, 4, layer), v = b.Operand(v_BSGD, 4, layer);
  const int64_t B = q.dim(0), S = q.dim(1), H = q.dim(2), D = q.dim(3);
  const double given = seen.scores.scale;
  const float scale = static_cast<float>(given > 0 ? given : 1.0 / std::sqrt(static_cast<double>(D)));
  const float cap = static_cast<float>(seen.scores.cap);
  const Tensor ids = PositionIdsOf(b);
  const Tensor out = b.NewActivation("attention.out", q.dtype, {B * S, H * D});
  if (b.options().cache.positions > 0) {
    const int64_t G = k.dim(2);
    b.Emit(CachedAttention{.q_BSHD = q,
                           .k_BSGD = k,
                           .v_BSGD = v,
                           .begins_B = BeginsOf(b),
                           .out_BSHD = out.SplitLast(H, D).SplitFirst(B),
                           .keys_CGPD = b.NewCache("attention.keys", k.dtype, G, D, seen.window),
                           .values_CGPD = b.NewCache("attention.values", v.dtype, G, D, seen.window),
                           .scale = scale,
                           .window = seen.window,
                           .cap = cap});
    return out;
  }
  const Tensor lse = b.NewActivation("attention.lse", DType::kFloat32, {B, H, S});
  const auto heads = [=](const Tensor& t) { return t.SplitLast(H, D).SplitFirst(B); };
  b.Emit(AttentionForward{.q_BSHD = q,
                          .k_BSGD = k,
                          .v_BSGD = v,
                          .out_BSHD = heads(out),
                          .lse_BHS = lse,
                          .position_ids_BS = ids,
                          .scale = scale,
                          .window = seen.window,
                          .causal = seen.causal,
                          .cap = cap});
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
                             .position_ids_BS = ids,
                             .scale = scale,
                             .window = seen.window,
                             .causal = seen.causal,
                             .cap = cap});
  });
  return out;
}

}  // namespace

Tensor Attention(GraphBuilder& b, const Tensor& q_BSHD, const Tensor& k_BSGD, const Tensor& v_BSGD, int64_t window,
                 const AttentionScores& scores) {
  return Attend(b, q_BSHD, k_BSGD, v_BSGD, {.window = window, .scores = scores}, "Attention");
}

Tensor BidirectionalAttention(GraphBuilder& b, const Tensor& q_BSHD, const Tensor& k_BSGD, const Tensor& v_BSGD) {
  if (b.options().mode == GraphMode::kLogits) {
    b.Fail(absl::InvalidArgumentError(
        "a model with bidirectional attention cannot generate tokens: its attention reads the tokens after a position, "
        "which do not exist yet when the next one is drawn"));
  }
  if (b.options().position_ids || b.options().padding) {
    b.Fail(absl::InvalidArgumentError(
        "a model with bidirectional attention cannot train on packed or padded documents: its attention reads the "
        "tokens after a position, which may be of another document or padding; use data.packing=CUT"));
    return Attend(b, q_BSHD, k_BSGD, v_BSGD, {}, "BidirectionalAttention");
  }
  return Attend(b, q_BSHD, k_BSGD, v_BSGD, {.causal = false}, "BidirectionalAttention");
}

}  // namespace shale
