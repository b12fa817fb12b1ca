// The operations ("ops") of a training step. An op is a struct: the comment gives its formula, the members its tensors
// with shape and dtype.
//
// T tokens (B sequences of S), C model width, M, N and K sizes of a matmul, H query heads, G key/value heads, D head
// width, F inner width, V vocabulary, R rows, P parameters of a flat shard (in embeddings: rows of the position table).
// "act" is the compute dtype, f32 or bf16, the same for all act tensors of an op. All arithmetic is fp32 or wider. If
// an op stores a value in bf16 and uses it again, it uses the rounded value, so that a recomputation yields the same
// bits. Unless noted, tensors are contiguous and outputs overlap no other operand. An absent tensor (rank 0) is an
// optional operand that was not given. Gradients of parameters are f32. If `accumulate` is set, an op adds to its
// output, else it overwrites it; formulas write both as (+)=.
//
// Visit calls visitor(name, tensor, access) for every operand, absent ones included, in a fixed order. Binding,
// validation, metering and dependency analysis are all built on it. Code that does not look into an op includes only
// op.h.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/element_range.h"
#include "kernels/op.h"
#include "kernels/step_scalars.h"
#include "kernels/tensor.h"
#include "kernels/update_rules.h"

namespace shale {

// out[t] = weight[tokens[t]] + positions[t mod S]. Tokens lie in [0, V).
struct EmbeddingForward {
  static constexpr absl::string_view kName = "EmbeddingForward";
  Tensor tokens_BS;     // i32
  Tensor weight_VC;     // act
  Tensor positions_PC;  // act, optional, P >= S
  Tensor out_TC;        // act
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("tokens", op.tokens_BS, Access::kRead);
    v("weight", op.weight_VC, Access::kRead);
    v("positions", op.positions_PC, Access::kRead);
    v("out", op.out_TC, Access::kWrite);
  }
};

// d_weight[v] (+)= sum of d_out[t] over all t with tokens[t] = v, in the order of t; d_positions[s] (+)= the same over
// all t with t mod S = s. Rows that receive no gradient become zero, or stay as they are if `accumulate` is set.
struct EmbeddingBackward {
  static constexpr absl::string_view kName = "EmbeddingBackward";
  Tensor tokens_BS;       // i32
  Tensor d_out_TC;        // act
  Tensor d_weight_VC;     // f32
  Tensor d_positions_PC;  // f32, optional
  bool accumulate = false;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    const Access grad = op.accumulate ? Access::kReadWrite : Access::kWrite;
    v("tokens", op.tokens_BS, Access::kRead);
    v("d_out", op.d_out_TC, Access::kRead);
    v("d_weight", op.d_weight_VC, grad);
    v("d_positions", op.d_positions_PC, grad);
  }
};

// c = op(a) op(b) + bias, or c += op(a) op(b), where op transposes if transpose_a or transpose_b is set. a is [M, K],
// or [K, M] if transposed; b is [K, N], or [N, K] if transposed. Rows may be strided; the last dimension is dense.
// Accumulates in fp32.
//
// packed_b holds a copy of b in the order in which the device's kernels read it (see Ops::PackedBytes). The op writes
// packed_b, or reads it if b_is_packed is set; c gets the same bits either way.
struct MatMul {
  static constexpr absl::string_view kName = "MatMul";
  Tensor a;         // act
  Tensor b;         // act
  Tensor bias_N;    // act, optional; not together with accumulate
  Tensor c_MN;      // act or f32
  Tensor packed_b;  // i16, PackedBytes long, contiguous; optional
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;   // c must be f32
  bool b_is_packed = false;  // packed_b was written by a matmul with the same b, transpose_b and dtype
  int64_t m() const { return c_MN.shape[0]; }
  int64_t n() const { return c_MN.shape[1]; }
  int64_t k() const { return a.shape[transpose_a ? 0 : 1]; }
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("a", op.a, Access::kRead);
    v("b", op.b, Access::kRead);
    v("bias", op.bias_N, Access::kRead);
    v("c", op.c_MN, op.accumulate ? Access::kReadWrite : Access::kWrite);
    v("packed_b", op.packed_b, op.b_is_packed ? Access::kRead : Access::kWrite);
  }
};

// d_bias (+)= column sums of d_out.
struct BiasBackward {
  static constexpr absl::string_view kName = "BiasBackward";
  Tensor d_out_TN;  // act, rows may be strided
  Tensor d_bias_N;  // f32
  bool accumulate = false;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("d_out", op.d_out_TN, Access::kRead);
    v("d_bias", op.d_bias_N, op.accumulate ? Access::kReadWrite : Access::kWrite);
  }
};

// sum = x + residual, or x itself without a residual. y = sum / rms(sum) * weight and rstd = 1 / rms(sum), per row,
// where rms(s) = sqrt(mean(s^2) + epsilon) (Zhang and Sennrich, 2019). x and y are [T, C] or [T, H, D], and their outer
// dimensions may be strided; row t*H + h of [T, H, D] is (t, h). y may be x itself.
struct RmsNormForward {
  static constexpr absl::string_view kName = "RmsNormForward";
  Tensor x;         // act
  Tensor residual;  // act, optional, same shape as x
  Tensor weight_C;  // act
  Tensor sum;       // act; present if and only if residual is
  Tensor y;         // act
  Tensor rstd_R;    // f32
  float epsilon = 0;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x, Access::kRead);
    v("residual", op.residual, Access::kRead);
    v("weight", op.weight_C, Access::kRead);
    v("sum", op.sum, Access::kWrite);
    v("y", op.y, Access::kWrite);
    v("rstd", op.rstd_R, Access::kWrite);
  }
};

// d_x = d_residual + the gradient of y = norm(x) with respect to x; d_weight (+)= sum over rows of d_y x rstd. x is the
// tensor that the forward op normalized: its `sum`, or its x without a residual. d_y, x, d_residual and d_x have the
// shape of that tensor, and their outer dimensions may be strided. d_x may be d_y or d_residual itself.
struct RmsNormBackward {
  static constexpr absl::string_view kName = "RmsNormBackward";
  Tensor d_y;         // act
  Tensor x;           // act
  Tensor weight_C;    // act
  Tensor rstd_R;      // f32
  Tensor d_residual;  // act, optional
  Tensor d_x;         // act
  Tensor d_weight_C;  // f32
  bool accumulate = false;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("d_y", op.d_y, Access::kRead);
    v("x", op.x, Access::kRead);
    v("weight", op.weight_C, Access::kRead);
    v("rstd", op.rstd_R, Access::kRead);
    v("d_residual", op.d_residual, Access::kRead);
    v("d_x", op.d_x, Access::kWrite);
    v("d_weight", op.d_weight_C, op.accumulate ? Access::kReadWrite : Access::kWrite);
  }
};

// Like RmsNormForward, with y = (sum - mean) * rstd * weight + bias and rstd = 1 / sqrt(variance + epsilon), where the
// variance is biased: the sum of squares is divided by C (Ba et al., 2016).
struct LayerNormForward {
  static constexpr absl::string_view kName = "LayerNormForward";
  Tensor x, residual, weight_C, bias_C, sum, y;  // act
  Tensor mean_R, rstd_R;                         // f32
  float epsilon = 0;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x, Access::kRead);
    v("residual", op.residual, Access::kRead);
    v("weight", op.weight_C, Access::kRead);
    v("bias", op.bias_C, Access::kRead);
    v("sum", op.sum, Access::kWrite);
    v("y", op.y, Access::kWrite);
    v("mean", op.mean_R, Access::kWrite);
    v("rstd", op.rstd_R, Access::kWrite);
  }
};

// Like RmsNormBackward; d_weight (+)= sum over rows of d_y (x - mean) rstd, d_bias (+)= sum over rows of d_y.
struct LayerNormBackward {
  static constexpr absl::string_view kName = "LayerNormBackward";
  Tensor d_y, x, weight_C;      // act
  Tensor mean_R, rstd_R;        // f32
  Tensor d_residual;            // act, optional
  Tensor d_x;                   // act
  Tensor d_weight_C, d_bias_C;  // f32
  bool accumulate = false;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    const Access grad = op.accumulate ? Access::kReadWrite : Access::kWrite;
    v("d_y", op.d_y, Access::kRead);
    v("x", op.x, Access::kRead);
    v("weight", op.weight_C, Access::kRead);
    v("mean", op.mean_R, Access::kRead);
    v("rstd", op.rstd_R, Access::kRead);
    v("d_residual", op.d_residual, Access::kRead);
    v("d_x", op.d_x, Access::kWrite);
    v("d_weight", op.d_weight_C, grad);
    v("d_bias", op.d_bias_C, grad);
  }
};

// Scales the rotary frequencies for contexts longer than those trained on (Llama 3.1). factor 1 leaves them unchanged.
// For f = theta^(-2i/D) with wavelength L = 2 pi / f: f stays if L < original_context / high_freq_factor, is divided by
// `factor` if L > original_context / low_freq_factor, and is interpolated in between.
struct RopeScaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_context = 8192;
};

// Rotary position embedding in place (Su et al., 2021), halves convention: at position s of its sequence, rotates the
// pair (x[i], x[i + D/2]) by the angle s * f(i), or by its negative if `inverse` is set (which computes the gradient).
// Angles are computed in fp64.
struct Rope {
  static constexpr absl::string_view kName = "Rope";
  Tensor x_BSHD;  // act, outer dimensions may be strided
  double theta = 10000;
  RopeScaling scaling;
  bool inverse = false;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_BSHD, Access::kReadWrite);
  }
};

// Causal attention with grouped heads: query head h reads key/value head h / (H / G). scores = scale q k^T over the
// keys j <= i (and j > i - window if window > 0), p = softmax(scores), out = p v, lse = log-sum-exp of the scores.
// Memory is linear in S: no [S, S] matrix exists (Dao, 2023). If act is bf16, a backend may round exp(score - largest
// score of the row) to bf16 for the matmul with v; the sum that divides it is taken before rounding.
struct AttentionForward {
  static constexpr absl::string_view kName = "AttentionForward";
  Tensor q_BSHD, k_BSGD, v_BSGD;  // act, outer dimensions may be strided
  Tensor out_BSHD;                // act, outer dimensions may be strided
  Tensor lse_BHS;                 // f32
  float scale = 1;
  int64_t window = 0;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("q", op.q_BSHD, Access::kRead);
    v("k", op.k_BSGD, Access::kRead);
    v("v", op.v_BSGD, Access::kRead);
    v("out", op.out_BSHD, Access::kWrite);
    v("lse", op.lse_BHS, Access::kWrite);
  }
};

// Recomputes p from q, k and lse; then
//   delta = rowsum(d_out * out); ds = p (d_out v^T - delta) scale; d_q = ds k; d_v = p^T d_out; d_k = ds^T q.
// d_k and d_v are summed over the query heads of a group. If act is bf16, a backend may round p and ds to bf16 for
// these three matmuls.
struct AttentionBackward {
  static constexpr absl::string_view kName = "AttentionBackward";
  Tensor q_BSHD, k_BSGD, v_BSGD, out_BSHD;  // act, outer dimensions may be strided
  Tensor lse_BHS;                           // f32
  Tensor d_out_BSHD;                        // act, outer dimensions may be strided
  Tensor d_q_BSHD, d_k_BSGD, d_v_BSGD;      // act, outer dimensions may be strided
  float scale = 1;
  int64_t window = 0;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("q", op.q_BSHD, Access::kRead);
    v("k", op.k_BSGD, Access::kRead);
    v("v", op.v_BSGD, Access::kRead);
    v("out", op.out_BSHD, Access::kRead);
    v("lse", op.lse_BHS, Access::kRead);
    v("d_out", op.d_out_BSHD, Access::kRead);
    v("d_q", op.d_q_BSHD, Access::kWrite);
    v("d_k", op.d_k_BSGD, Access::kWrite);
    v("d_v", op.d_v_BSGD, Access::kWrite);
  }
};

// y = silu(gate) * up, where gate and up are the halves of a row (Shazeer, 2020); silu(g) = g / (1 + exp(-g)).
struct SwiGluForward {
  static constexpr absl::string_view kName = "SwiGluForward";
  Tensor gate_up_T2F;  // act, [T, 2F]
  Tensor y_TF;         // act
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("gate_up", op.gate_up_T2F, Access::kRead);
    v("y", op.y_TF, Access::kWrite);
  }
};

// Computes d_gate_up, the gradient of SwiGluForward with respect to gate_up.
struct SwiGluBackward {
  static constexpr absl::string_view kName = "SwiGluBackward";
  Tensor gate_up_T2F;    // act
  Tensor d_y_TF;         // act
  Tensor d_gate_up_T2F;  // act; may be gate_up itself
  Tensor y_TF;           // act, optional: y of the forward op again, with the same bits; may be d_y itself
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("gate_up", op.gate_up_T2F, Access::kRead);
    v("d_y", op.d_y_TF, Access::kRead);
    v("d_gate_up", op.d_gate_up_T2F, Access::kWrite);
    v("y", op.y_TF, Access::kWrite);
  }
};

// GELU (Hendrycks and Gimpel, 2016). kErf is exact, x Phi(x); kTanh is 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
enum class GeluKind : uint8_t { kTanh, kErf };

struct GeluForward {
  static constexpr absl::string_view kName = "GeluForward";
  Tensor x_TF, y_TF;  // act
  GeluKind kind = GeluKind::kTanh;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_TF, Access::kRead);
    v("y", op.y_TF, Access::kWrite);
  }
};

struct GeluBackward {
  static constexpr absl::string_view kName = "GeluBackward";
  Tensor x_TF, d_y_TF, d_x_TF;  // act; d_x may be d_y itself
  GeluKind kind = GeluKind::kTanh;
  Tensor y_TF;  // act, optional: y of the forward op again, with the same bits; may be x itself
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_TF, Access::kRead);
    v("d_y", op.d_y_TF, Access::kRead);
    v("d_x", op.d_x_TF, Access::kWrite);
    v("y", op.y_TF, Access::kWrite);
  }
};

// Per row: loss = logsumexp(logits) - logits[target]. If `gradient` is set, also overwrites logits with their gradient
// (softmax(logits) - onehot(target)) * scale[0]. A row with a negative target has loss 0 and gradient 0.
struct CrossEntropy {
  static constexpr absl::string_view kName = "CrossEntropy";
  Tensor logits_TV;  // act; overwritten if `gradient` is set
  Tensor targets_T;  // i32, may be strided
  Tensor scale_1;    // f32; read only if `gradient` is set
  Tensor loss_T;     // f32
  bool gradient = true;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("logits", op.logits_TV, op.gradient ? Access::kReadWrite : Access::kRead);
    v("targets", op.targets_T, Access::kRead);
    v("scale", op.scale_1, Access::kRead);
    v("loss", op.loss_T, Access::kWrite);
  }
};

// total (+)= sum of x, in fp64, in an order that depends only on the size of x.
struct Sum {
  static constexpr absl::string_view kName = "Sum";
  Tensor x_N;      // f32
  Tensor total_1;  // f64
  bool accumulate = false;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_N, Access::kRead);
    v("total", op.total_1, op.accumulate ? Access::kReadWrite : Access::kWrite);
  }
};

// total (+)= sum of squares of x, in fp64, in an order that depends only on the size of x.
struct SumSquares {
  static constexpr absl::string_view kName = "SumSquares";
  Tensor x_N;      // f32 or bf16
  Tensor total_1;  // f64
  bool accumulate = false;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_N, Access::kRead);
    v("total", op.total_1, op.accumulate ? Access::kReadWrite : Access::kWrite);
  }
};

// to = from, converted to the dtype of `to`: f32 to bf16 rounds to nearest even, equal dtypes copy bits.
struct Copy {
  static constexpr absl::string_view kName = "Copy";
  Tensor from, to;  // equal shapes, contiguous
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("from", op.from, Access::kRead);
    v("to", op.to, Access::kWrite);
  }
};

// out = a + b in fp32, rounded to out's dtype. out may be a or b.
struct Add {
  static constexpr absl::string_view kName = "Add";
  Tensor a, b, out;  // one dtype, act, equal shapes, contiguous
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("a", op.a, Access::kRead);
    v("b", op.b, Access::kRead);
    v("out", op.out, Access::kWrite);
  }
};

// total = x, or total += x if `accumulate` is set.
//
// A bf16 total is widened, added to in fp32, and rounded stochastically, by the bits of a RoundingStream
// (kernels/counter_random.h) of `seed`, the update number update_count + 1, `micro_batch`, `group` and `stream`.
// Element i is element `shard_begin + i` of the group; shard_begin is a multiple of kRandomBlock. Only such a total has
// update_count, micro_batch and the members after them.
struct Accumulate {
  static constexpr absl::string_view kName = "Accumulate";
  Tensor x_N;      // f32
  Tensor total_N;  // f32 or bf16
  bool accumulate = false;
  Tensor update_count_1;  // i64, given if and only if total is bf16
  Tensor micro_batch_1;   // i64, optional; absent: 0
  int64_t shard_begin = 0;
  int64_t shard_stride = 0;  // As in Update.
  uint64_t seed = 0;
  int32_t group = 0;
  uint32_t stream = 0;  // RoundingStream::tensor
  bool rounds() const { return total_N.dtype == DType::kBFloat16; }
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_N, Access::kRead);
    v("update_count", op.update_count_1, Access::kRead);
    v("micro_batch", op.micro_batch_1, Access::kRead);
    v("total", op.total_N, op.accumulate ? Access::kReadWrite : Access::kWrite);
  }
};

// Zeroes the given ranges of a flat vector (the gaps between parameters). The ranges are sorted and disjoint.
struct ZeroRanges {
  static constexpr absl::string_view kName = "ZeroRanges";
  Tensor x_N;  // f32 or bf16
  std::shared_ptr<const std::vector<ElementRange>> ranges;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_N, Access::kReadWrite);
  }
};

// scale = 1 / valid_tokens, or 0 if no token is valid.
struct LossScale {
  static constexpr absl::string_view kName = "LossScale";
  Tensor valid_tokens_1;  // i64
  Tensor scale_1;         // f32
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("valid_tokens", op.valid_tokens_1, Access::kRead);
    v("scale", op.scale_1, Access::kWrite);
  }
};

// Sets totals[kTotalNonFinite] to 1 if the loss sum or the squared norm of this rank is not finite, else to 0. If it is
// 1, also sets the other two totals to 0, so that their sums over the ranks stay defined and only the third total
// reports the error.
struct FlagNonFinite {
  static constexpr absl::string_view kName = "FlagNonFinite";
  Tensor totals_3;  // f64
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("totals", op.totals_3, Access::kReadWrite);
  }
};

// Combines G rows of totals into one: the rows of the flat groups of a step, or of the ranks in a row of the mesh. All
// rows have the same loss. If no row is flagged, writes the loss of row 0, the sum of the squared norms in the order of
// the rows, and flag 0. Otherwise writes 0, 0 and the largest flag.
struct CombineTotals {
  static constexpr absl::string_view kName = "CombineTotals";
  Tensor groups_G3;  // f64, rows of kTotal*; at least one
  Tensor totals_3;   // f64, kTotal*
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("groups", op.groups_G3, Access::kRead);
    v("totals", op.totals_3, Access::kWrite);
  }
};

// Decides whether this step updates the weights. Skips the update if no token is valid or a total is not finite.
// Otherwise computes the values that an Update needs for update number n = update_count + 1, and then sets update_count
// to n if `counts` is set. The factor on the gradient is min(1, max_norm / (norm + 1e-6)), or 1 without clipping. The
// norm is that of the totals, or previous_norm if it is given; a previous_norm of 0 does not clip. Writes n to
// `number`, even if it skips the update.
struct PrepareUpdate {
  static constexpr absl::string_view kName = "PrepareUpdate";
  Tensor hyper_2;          // f32, kHyper*
  Tensor valid_tokens_1;   // i64
  Tensor totals_3;         // f64, kTotal*, summed over ranks
  Tensor update_count_1;   // i64, persistent
  Tensor update_5;         // f32, kUpdate*
  Tensor number_1;         // i64, optional
  Tensor previous_norm_1;  // f64, optional, persistent: of RecordNorm
  double beta1 = 0.9;
  double beta2 = 0.95;
  bool counts = true;  // If a step prepares an update for each group, only the last one counts.
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("hyper", op.hyper_2, Access::kRead);
    v("valid_tokens", op.valid_tokens_1, Access::kRead);
    v("totals", op.totals_3, Access::kRead);
    v("update_count", op.update_count_1, op.counts ? Access::kReadWrite : Access::kRead);
    v("previous_norm", op.previous_norm_1, Access::kRead);
    v("update", op.update_5, Access::kWrite);
    v("number", op.number_1, Access::kWrite);
  }
};

// Sets norm to the root of the squared norm, for the next step. Leaves it alone if no token is valid, or if a total is
// not finite.
struct RecordNorm {
  static constexpr absl::string_view kName = "RecordNorm";
  Tensor valid_tokens_1;  // i64
  Tensor totals_3;        // f64, kTotal*, summed over ranks
  Tensor norm_1;          // f64, persistent; 0 before the first step
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("valid_tokens", op.valid_tokens_1, Access::kRead);
    v("totals", op.totals_3, Access::kRead);
    v("norm", op.norm_1, Access::kReadWrite);
  }
};

// Applies an update rule (kernels/update_rules.h) to a rank's shard of a flat group, in fp32. The master p is `master`
// (f32), or `weight` joined with `low` (SPLIT), or `weight` itself if neither is given. A bf16 weight with a master
// becomes RoundMaster(p). Does nothing if update[kUpdateSkip] is set. Element i of the shard is element `shard_begin +
// i` of the group; shard_begin is a multiple of BlockOf(rule), and so is P unless the shard is the group's last.
// `decayed` lists the ranges of the group that have weight decay; null: none has.
//
// bf16 states, and a bf16 weight that is its own master, are rounded stochastically from their fp32 values, by the bits
// of a RoundingStream (kernels/counter_random.h) of `seed`, `number`, `group` and the tensor. The states of this update
// enter p before they are rounded. `number` is given if and only if something is rounded so, and shard_begin is then a
// multiple of kRandomBlock.
struct Update {
  Tensor update_5;    // f32
  Tensor gradient_P;  // f32
  Tensor weight_P;    // f32 or bf16
  Tensor master_P;    // f32, optional
  Tensor low_P;       // i16, optional
  UpdateRule rule;
  std::array<Tensor, kMaxUpdateStates> states;  // Those of StatesOf(rule), each [ceil(P / block)] of its dtype.
  std::shared_ptr<const std::vector<ElementRange>> decayed;
  int64_t shard_begin = 0;
  int64_t shard_stride = 0;  // SetShard sets shard_begin to index x shard_stride. 0: every rank updates the full group.
  Tensor number_1;           // i64, optional: the update's number, from PrepareUpdate.
  uint64_t seed = 0;
  int32_t group = 0;
  absl::string_view name() const { return NameOf(rule); }
  bool is_own_master() const { return !master_P.present() && !low_P.present(); }
  bool rounds_stochastically() const {
    return (is_own_master() && weight_P.dtype == DType::kBFloat16) || HasBFloat16States(rule);
  }
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("update", op.update_5, Access::kRead);
    v("number", op.number_1, Access::kRead);
    v("gradient", op.gradient_P, Access::kRead);
    v("weight", op.weight_P, Access::kReadWrite);
    v("master", op.master_P, Access::kReadWrite);
    v("low", op.low_P, Access::kReadWrite);
    const absl::Span<const UpdateState> states = StatesOf(op.rule);
    for (size_t i = 0; i < states.size(); ++i) v(states[i].name, op.states[i], Access::kReadWrite);
  }
};

// An op of one of these kinds. What is not inline is compiled only in ops.cc: how 28 kinds are copied and destroyed is
// slow to compile.
struct OpKinds
    : std::variant<EmbeddingForward, EmbeddingBackward, MatMul, BiasBackward, RmsNormForward, RmsNormBackward,
                   LayerNormForward, LayerNormBackward, Rope, AttentionForward, AttentionBackward, SwiGluForward,
                   SwiGluBackward, GeluForward, GeluBackward, CrossEntropy, Sum, SumSquares, Copy, Add, Accumulate,
                   ZeroRanges, LossScale, FlagNonFinite, CombineTotals, PrepareUpdate, RecordNorm, Update> {
  template <class Kind>
  explicit OpKinds(std::in_place_type_t<Kind> kind, Kind op) : variant(kind, std::move(op)) {}
  OpKinds(const OpKinds& other);
  OpKinds& operator=(const OpKinds& other);
  ~OpKinds();
};

template <class Kind>
requires IsOpKind<Kind> Op::Op(Kind op) : kinds_(new OpKinds(std::in_place_type<Kind>, std::move(op))) {}

template <class Kind>
const Kind* Op::As() const {
  return std::get_if<Kind>(kinds_.get());
}

template <class Kind>
Kind* Op::As() {
  return std::get_if<Kind>(kinds_.get());
}

}  // namespace shale
