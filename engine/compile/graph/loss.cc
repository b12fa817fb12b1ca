#include "kernels/ops/loss.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/api/layers.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

// Returns whether x has a row for every token, or, if only the last position of a sequence counts, one for every
// sequence. Records an error if it has not.
bool HasRowsOfTargets(GraphBuilder& b, const Tensor& x, absl::string_view user) {
  const int64_t rows = x.dim(0), B = b.options().micro_batch, S = b.options().sequence_length;
  if (rows == B * S || (rows == B && b.options().last_target_only)) return true;
  b.Fail(absl::InvalidArgumentError(
      absl::StrCat(user, ": x has ", rows, " rows; wanted ", B * S, ", one for every token",
                   b.options().last_target_only ? absl::StrCat(", or ", B, ", one for every sequence")
                                                : ". A model with a row for every sequence sets last_target_only")));
  return false;
}

// Returns the targets, or the weights of the targets, of `rows` rows: those of all tokens, or the last of each
// sequence.
Tensor DataFor(GraphBuilder& b, StepItem item, int64_t rows) {
  Tensor data = b.UseData(item);
  const int64_t B = b.options().micro_batch, S = b.options().sequence_length;
  if (rows == B * S) return data.Reshape({rows});
  Tensor last = data.Slice(1, S - 1, 1);
  last.rank = 1;
  return last;
}

// Emits the logits of one row per sequence.
void EmitLogits(GraphBuilder& b, const Tensor& x, const Tensor& weight, const Tensor& bias, DType dtype) {
  Tensor wanted = x;
  if (x.dim(0) != b.options().micro_batch) {
    // Selecting rows of x is an embedding lookup with x as the table.
    wanted = b.NewActivation("rows", x.dtype, {b.options().micro_batch, x.dim(1)});
    const Tensor rows = b.UseData(StepItem::kRows).Reshape({b.options().micro_batch, 1});
    b.Emit(EmbeddingForward{.tokens_BS = rows, .weight_VC = x, .out_TC = wanted});
  }
  b.Emit(MatMul{.a = wanted, .b = weight, .bias_N = bias, .c_MN = b.UseLogits(dtype), .transpose_b = true});
}

// Returns the target values of `rows` rows: those of all positions, or the last of each sequence.
Tensor TargetValuesFor(GraphBuilder& b, int64_t rows, int64_t D) {
  const Tensor values = b.UseColumns(StepItem::kTargetValues, D);
  const int64_t B = b.options().micro_batch, S = b.options().sequence_length;
  if (rows != B || S == 1) return values;
  return values.Reshape({B, S * D}).Slice(1, (S - 1) * D, D);
}

}  // namespace

void LinearCrossEntropy(GraphBuilder& b, const Tensor& x_RC, ParameterId weight_VC, std::optional<ParameterId> bias_V,
                        double cap) {
  const Tensor x = b.Operand(x_RC, 2, "LinearCrossEntropy");
  const Tensor weight = b.UseParameter(weight_VC);
  const Tensor bias = bias_V ? b.UseParameter(*bias_V) : Tensor();
  const DType dtype = b.options().fp32_logits ? DType::kFloat32 : x.dtype;
  if (b.options().mode == GraphMode::kLogits) {
    b.SetLogitCap(cap);
    return EmitLogits(b, x, weight, bias, dtype);
  }

  // The backward of a chunk follows its forward at once, while its logits are still in the cache. CrossEntropy turns
  // the logits into their gradient in place. If logits are wider than x, it is rounded for the matmuls that read it.
  // The gradient of x is complete after the loop, so the rule only contributes it.
  const bool training = b.options().mode == GraphMode::kTraining;
  const bool input_gradient = training && b.NeedsGradient(x);
  const int64_t rows = x.dim(0), chunk = std::min(rows, b.options().loss_chunk_tokens), V = weight.dim(0);
  if (!HasRowsOfTargets(b, x, "LinearCrossEntropy")) return;
  const Tensor targets = DataFor(b, StepItem::kTargets, rows);
  const bool weighted = b.options().target_weights != TargetWeights::kNone;
  const Tensor weights = weighted ? DataFor(b, StepItem::kTargetWeights, rows) : Tensor();
  const Tensor scale = b.UseScalar(ValueRole::kMeanFactor), total = b.UseScalar(ValueRole::kLossTotal);
  const Tensor logits = b.NewActivation("logits", dtype, {chunk, V});
  const bool rounds = training && dtype != x.dtype;
  const Tensor d_logits = rounds ? b.NewActivation("logits.gradient", x.dtype, {chunk, V}) : logits;
  const Tensor loss = b.NewActivation("loss", DType::kFloat32, {rows});
  const Tensor d_x = input_gradient ? b.NewGradient(x) : Tensor();
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    const Tensor x_chunk = x.Slice(0, begin, count), logits_chunk = logits.Slice(0, 0, count);
    const Tensor d_chunk = d_logits.Slice(0, 0, count);
    b.Emit(MatMul{.a = x_chunk, .b = weight, .bias_N = bias, .c_MN = logits_chunk, .transpose_b = true});
    b.Emit(CrossEntropy{.logits_TV = logits_chunk,
                        .targets_T = targets.Slice(0, begin, count),
                        .scale_1 = scale,
                        .loss_T = loss.Slice(0, begin, count),
                        .gradient = training,
                        .weights_T = weighted ? weights.Slice(0, begin, count) : Tensor(),
                        .cap = static_cast<float>(cap)});
    if (!training) continue;
    if (rounds) b.Emit(Copy{.from = logits_chunk, .to = d_chunk});
    if (input_gradient) b.Emit(MatMul{.a = d_chunk, .b = weight, .c_MN = d_x.Slice(0, begin, count)});
    if (b.NeedsGradient(weight)) {
      b.Emit(MatMul{.a = d_chunk, .b = x_chunk, .c_MN = b.ParameterGradient(weight), .transpose_a = true});
    }
    if (b.NeedsGradient(bias)) b.Emit(BiasBackward{.d_out_TN = d_chunk, .d_bias_N = b.ParameterGradient(bias)});
  }
  b.Emit(Sum{.x_N = loss, .total_1 = total});
  b.OnBackward([=](GradientBuilder& g) { g.Contribute(x, d_x); });
}

void MeanSquaredError(GraphBuilder& b, const Tensor& x_RD) {
  const Tensor x = b.Operand(x_RD, 2, "MeanSquaredError");
  if (b.options().mode == GraphMode::kLogits) {
    return b.Fail(absl::InvalidArgumentError("a model with a mean squared error has no logits to generate from"));
  }
  if (!HasRowsOfTargets(b, x, "MeanSquaredError")) return;
  const bool training = b.options().mode == GraphMode::kTraining;
  const int64_t rows = x.dim(0);
  const Tensor loss = b.NewActivation("loss", DType::kFloat32, {rows});
  const Tensor d_x = training && b.NeedsGradient(x) ? b.NewGradient(x) : Tensor();
  // Target values have no value that means "masked". Missing samples have weight 0, so there are always weights.
  b.Emit(SquaredError{.prediction_TD = x,
                      .targets_TD = TargetValuesFor(b, rows, x.dim(1)),
                      .scale_1 = b.UseScalar(ValueRole::kMeanFactor),
                      .loss_T = loss,
                      .d_prediction_TD = d_x,
                      .weights_T = DataFor(b, StepItem::kTargetWeights, rows)});
  b.Emit(Sum{.x_N = loss, .total_1 = b.UseScalar(ValueRole::kLossTotal)});
  b.OnBackward([=](GradientBuilder& g) { g.Contribute(x, d_x); });
}

}  // namespace shale
