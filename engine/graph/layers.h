// The layers that models are built from. Each emits its forward ops and registers its gradient rule.
//
// T tokens (B sequences of S), C width, N outputs, H query heads, G key/value heads, D head width, F inner width.
// Adding a layer: a function here, its file beside, its ops in kernels/ops.h.
#pragma once

#include <optional>
#include <utility>

#include "absl/strings/string_view.h"
#include "engine/graph/builder.h"

namespace shale {

// out[t] = weight[inputs[t]] + positions[t mod S]: [T, C].
Tensor Embedding(GraphBuilder& b, ParameterId weight_VC, std::optional<ParameterId> positions_PC);

// x W^T + bias: [T, N].
Tensor Linear(GraphBuilder& b, const Tensor& x_TK, ParameterId weight_NK, std::optional<ParameterId> bias_N,
              absl::string_view name);

// LayerNorm when a bias is given, else RMSNorm.
struct NormParameters {
  ParameterId weight;
  std::optional<ParameterId> bias;
  double epsilon = 1e-5;
};
// x is [T, C].
Tensor Norm(GraphBuilder& b, const Tensor& x_TC, const NormParameters& norm, absl::string_view name);
// {sum, norm(sum)} with sum = x + residual, in one pass; the sum is the residual stream between sublayers.
std::pair<Tensor, Tensor> AddNorm(GraphBuilder& b, const Tensor& x_TC, const Tensor& residual_TC,
                                  const NormParameters& norm, absl::string_view sum_name, absl::string_view name);
// RMSNorm of each head: from the view x [T, heads, D] into the view y of another activation.
void HeadNorm(GraphBuilder& b, const Tensor& x_THD, ParameterId weight_D, double epsilon, const Tensor& y_THD,
              absl::string_view name);

// Turns the view x in place; whoever reads x after this reads it turned.
void ApplyRope(GraphBuilder& b, const Tensor& x_BSHD, double theta, const RopeScaling& scaling);

// Causal attention: [T, H * D]. The inputs are views of activations.
Tensor Attention(GraphBuilder& b, const Tensor& q_BSHD, const Tensor& k_BSGD, const Tensor& v_BSGD, int64_t window);

// [T, 2F] -> [T, F].
Tensor SwiGlu(GraphBuilder& b, const Tensor& gate_up_T2F);
Tensor Gelu(GraphBuilder& b, const Tensor& x_TF, GeluKind kind);

// a + b, whole activations.
Tensor AddResidual(GraphBuilder& b, const Tensor& a_TC, const Tensor& b_TC, absl::string_view name);

// The head, by mode: the loss and its gradients, the loss, or logits. Logits exist for loss_chunk_tokens rows at a
// time. x has a row for every token, or one for every sequence (then the last target of the sequence counts).
void LinearCrossEntropy(GraphBuilder& b, const Tensor& x_RC, ParameterId weight_VC, std::optional<ParameterId> bias_V);

}  // namespace shale
