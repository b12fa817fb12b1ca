// The layers that models are built from. Each function emits its forward ops and registers its gradient rule. A result
// is a new activation of the current unit. `name` is the name of the result in its unit: name patterns of jobs match
// it, and plans show it.
//
// T tokens (B sequences of S), C width, K inputs, N outputs, H query heads, G key/value heads, D head width, F inner
// width, V vocabulary, P positions, R rows.
// To add a layer, declare it here, define it in a file beside this one, and add its ops to kernels/ops/.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/api/graph_builder.h"
#include "kernels/ops/rope.h"  // RopeScaling.
#include "kernels/tensor.h"

namespace shale {

// Returns the position of each token in its document, or an absent tensor if a sequence is one document. Attention and
// the layers below that depend on positions call it themselves.
Tensor PositionIdsOf(GraphBuilder& b);
// Returns the position of each sequence's first token, or an absent tensor if there is no cache. The same layers call
// it.
Tensor BeginsOf(GraphBuilder& b);

// Returns x in another dtype, f32 or the compute dtype: [T, C]. Layers compute in the dtype of what they read. So a
// model that computes a part of itself in fp32 casts the input of that part, and adds its parameters in fp32
// (AddParameter).
Tensor Cast(GraphBuilder& b, const Tensor& x_TC, DType dtype, absl::string_view name);

// out[t] = scale * weight[inputs[t]] + positions[the position of t]: [T, C]. `scale` is rounded to the dtype of weight.
Tensor Embedding(GraphBuilder& b, ParameterId weight_VC, std::optional<ParameterId> positions_PC, double scale = 1);

// Returns the features of the data, which take the place of tokens, in the compute dtype: [T, F]. They need no
// gradient.
Tensor Features(GraphBuilder& b, int64_t features);

// A low-rank adapter (LoRA) of adjacent rows of a linear layer's weight. It adds scale (x A^T) B^T to the columns of
// the output from `column` on. `name` is the name of scale (x A^T), as described above.
struct LowRankAdapter {
  ParameterId a_RK = -1, b_NR = -1;
  int64_t column = 0;
  double scale = 1;
  std::string name;
};

// x W^T + bias, and what the adapters add: [T, N].
Tensor Linear(GraphBuilder& b, const Tensor& x_TK, ParameterId weight_NK, std::optional<ParameterId> bias_N,
              absl::string_view name, absl::Span<const LowRankAdapter> adapters = {});

// Parameters of a LayerNorm if a bias is given, else of an RMSNorm.
struct NormParameters {
  ParameterId weight;
  std::optional<ParameterId> bias;
  double epsilon = 1e-5;
  bool adds_one = false;  // An RMSNorm multiplies by 1 + weight.
};
// norm(x): [T, C].
Tensor Norm(GraphBuilder& b, const Tensor& x_TC, const NormParameters& norm, absl::string_view name);
// Returns {sum, norm(sum)} with sum = x + residual, computed by one op. The sum is the residual stream between
// sublayers.
std::pair<Tensor, Tensor> AddNorm(GraphBuilder& b, const Tensor& x_TC, const Tensor& residual_TC,
                                  const NormParameters& norm, absl::string_view sum_name, absl::string_view name);
// RMSNorm of each head: reads the view x [T, heads, D] and writes the view y of another activation.
void HeadNorm(GraphBuilder& b, const Tensor& x_THD, const NormParameters& norm, const Tensor& y_THD,
              absl::string_view name);

// GroupNorm (Wu and He, 2018) of rows: a LayerNorm of each of `groups` groups of adjacent columns, with a weight and a
// bias for each column: [T, C]. `norm` must have a bias, and `groups` must divide C. Emits an op per group.
Tensor GroupNorm(GraphBuilder& b, const Tensor& x_TC, int64_t groups, const NormParameters& norm,
                 absl::string_view name);

// Views of a tensor: other shapes of the same elements. A view that does not fit is an error of the builder. Reshape
// takes a full tensor with as many elements. Slice takes `count` rows or columns from `begin` on. SplitLast and
// SplitFirst divide a dimension into [count, the rest]: [T, H * D] -> [T, H, D], and [B * S, C] -> [B, S, C].
Tensor Reshape(GraphBuilder& b, const Tensor& x, std::initializer_list<int64_t> shape);
Tensor Slice(GraphBuilder& b, const Tensor& x, int axis, int64_t begin, int64_t count);
Tensor SplitLast(GraphBuilder& b, const Tensor& x, int64_t count);
Tensor SplitFirst(GraphBuilder& b, const Tensor& x, int64_t count);

// Rotates the view x in place (RoPE). Ops that are emitted later read it rotated.
void ApplyRope(GraphBuilder& b, const Tensor& x_BSHD, double theta, const RopeScaling& scaling);

// The scores of attention.
struct AttentionScores {
  double scale = 0;  // Factor of the dot products; 0: 1 / sqrt(D).
  double cap = 0;    // Soft cap: a score becomes cap tanh(score / cap); 0: none.
};

// Causal attention: [T, H * D]. The inputs are views of activations. `window` is the number of tokens that a query
// sees, itself included; 0: no window.
Tensor Attention(GraphBuilder& b, const Tensor& q_BSHD, const Tensor& k_BSGD, const Tensor& v_BSGD, int64_t window,
                 const AttentionScores& scores = {});
// Attention in both directions, as in an encoder: a query sees all tokens of its sequence. Such a model cannot generate
// tokens, which do not exist yet where a query would see them, so a kLogits graph is an error.
Tensor BidirectionalAttention(GraphBuilder& b, const Tensor& q_BSHD, const Tensor& k_BSGD, const Tensor& v_BSGD);

// silu(gate) * up: [T, 2F], gate columns first, -> [T, F].
Tensor SwiGlu(GraphBuilder& b, const Tensor& gate_up_T2F);
// gelu(gate) * up, with the GELU by tanh: [T, 2F] -> [T, F].
Tensor GeGlu(GraphBuilder& b, const Tensor& gate_up_T2F);
// gelu(x): [T, F]. GeluErf is exact, x Phi(x), and GeluTanh approximates it by tanh.
Tensor GeluErf(GraphBuilder& b, const Tensor& x_TF);
Tensor GeluTanh(GraphBuilder& b, const Tensor& x_TF);

// a + b. Both are full activations.
Tensor AddResidual(GraphBuilder& b, const Tensor& a_TC, const Tensor& b_TC, absl::string_view name);

// The head. Computes, by mode, the loss and its gradients, the loss, or logits. For the loss, only loss_chunk_tokens
// rows of logits exist at a time. x has a row for every token, or one for every sequence (then only the last target of
// a sequence counts). A `cap` above 0 is a soft cap of the logits: cap tanh(logit / cap).
void LinearCrossEntropy(GraphBuilder& b, const Tensor& x_RC, ParameterId weight_VC, std::optional<ParameterId> bias_V,
                        double cap = 0);

// The mean squared error against the target values of the data, over the D columns of x. x has a row for every
// position, or one for every sequence (then only the last position of a sequence counts). Computes, by mode, the loss
// and its gradients, or the loss; a kLogits graph is an error.
void MeanSquaredError(GraphBuilder& b, const Tensor& x_RD);

}  // namespace shale
