// Ops on the scalars that control a step. Each runs in one thread and computes in fp64, as in
// kernels/reference/scalar_ops.cc.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/ops/scalars.h"
#include "kernels/step_scalars.h"

namespace shale::cuda {
namespace {

SHALE_DEVICE double FactorOf(const Global<double>& loss_scale) {
  return loss_scale.present() ? loss_scale.Load(kLossScaleFactor) : 1.0;
}

SHALE_KERNEL SHALE_BOUNDS(1) MeanFactorKernel(Global<int64_t> valid_tokens, Global<double> weight_total,
                                              Global<double> loss_scale, Global<float> factor) {
  const double divisor = weight_total.present() ? weight_total.Load(0) : static_cast<double>(valid_tokens.Load(0));
  factor.Store(0, divisor > 0 ? static_cast<float>(FactorOf(loss_scale) / divisor) : 0.0f);
}

SHALE_DEVICE bool IsFinite(double x) { return x - x == 0; }

SHALE_KERNEL SHALE_BOUNDS(1) FlagNonFiniteKernel(Global<double> totals, Global<double> loss_scale) {
  const double factor = FactorOf(loss_scale), squared_norm = totals.Load(kTotalSquaredNorm) / (factor * factor);
  const bool finite = IsFinite(totals.Load(kTotalLoss)) && IsFinite(squared_norm);
  totals.Store(kTotalNonFinite, finite ? 0.0 : 1.0);
  totals.Store(kTotalSquaredNorm, finite ? squared_norm : 0.0);
  if (!finite && !loss_scale.present()) totals.Store(kTotalLoss, 0.0);
}

SHALE_KERNEL SHALE_BOUNDS(1)
    CombineTotalsKernel(Global<double> groups, Global<double> totals, int64_t count, bool keeps_loss) {
  double squared_norm = 0, flag = 0;
  for (int64_t g = 0; g < count; ++g) {
    squared_norm += groups.Load(g * kTotalSize + kTotalSquaredNorm);
    const double of_group = groups.Load(g * kTotalSize + kTotalNonFinite);
    flag = flag < of_group ? of_group : flag;
  }
  totals.Store(kTotalLoss, flag == 0 || keeps_loss ? groups.Load(kTotalLoss) : 0.0);
  totals.Store(kTotalSquaredNorm, flag == 0 ? squared_norm : 0.0);
  totals.Store(kTotalNonFinite, flag);
}

// Each rank flags its own values. Values that are finite on every rank may still overflow in the sum.
SHALE_DEVICE bool AreFinite(const Global<double>& totals) {
  return totals.Load(kTotalNonFinite) == 0 && IsFinite(totals.Load(kTotalLoss)) &&
         IsFinite(totals.Load(kTotalSquaredNorm));
}

SHALE_DEVICE bool HasTargets(const Global<int64_t>& valid_tokens, const Global<double>& weight_total) {
  return (!weight_total.present() || weight_total.Load(0) > 0) && valid_tokens.Load(0) > 0;
}

// Returns whether the totals of a step or of a group say that no update is made.
SHALE_DEVICE bool IsSkipped(const Global<double>& totals, const Global<int64_t>& valid_tokens,
                            const Global<double>& weight_total) {
  return !AreFinite(totals) || !HasTargets(valid_tokens, weight_total);
}

// How the loss scale changes (PrepareUpdate).
struct Scaling {
  double growth_factor, backoff_factor, growth_interval;
};

SHALE_DEVICE void AdjustLossScale(const Global<double>& scale, const Scaling& scaling, bool finite) {
  constexpr double kMost = 3.4028234663852886e38;  // The largest fp32.
  const double factor = scale.Load(kLossScaleFactor), good = scale.Load(kLossScaleGoodSteps) + 1;
  if (!finite) {
    scale.Store(kLossScaleFactor, factor * scaling.backoff_factor);
    scale.Store(kLossScaleGoodSteps, 0.0);
    scale.Store(kLossScaleSkips, scale.Load(kLossScaleSkips) + 1);
    return;
  }
  const bool grows = good >= scaling.growth_interval;
  scale.Store(kLossScaleSkips, 0.0);
  scale.Store(kLossScaleGoodSteps, grows ? 0.0 : good);
  if (grows && factor * scaling.growth_factor <= kMost) scale.Store(kLossScaleFactor, factor * scaling.growth_factor);
}

SHALE_KERNEL SHALE_BOUNDS(1)
    PrepareUpdateKernel(Global<float> hyper, Global<int64_t> valid_tokens, Global<double> totals,
                        Global<int64_t> update_count, Global<float> update, Global<int64_t> number,
                        Global<double> previous_norm, Global<double> weight_total, Global<double> loss_scale,
                        Scaling scaling, double beta1, double beta2, bool counts, float learning_rate_factor,
                        float own_max_norm) {
  const bool skip = IsSkipped(totals, valid_tokens, weight_total);
  const double loss_factor = FactorOf(loss_scale);
  if (counts && loss_scale.present() && HasTargets(valid_tokens, weight_total)) {
    AdjustLossScale(loss_scale, scaling, AreFinite(totals));
  }
  const int64_t count = update_count.Load(0) + 1;
  if (number.present()) number.Store(0, count);
  update.Store(kUpdateLearningRate, hyper.Load(kHyperLearningRate) * learning_rate_factor);
  update.Store(kUpdateSkip, skip ? 1.0f : 0.0f);
  if (skip) {
    update.Store(kUpdateCorrection1, 1.0f);
    update.Store(kUpdateCorrection2, 1.0f);
    update.Store(kUpdateGradientFactor, 0.0f);
    return;
  }
  if (counts) update_count.Store(0, count);
  const double n = static_cast<double>(count);
  update.Store(kUpdateCorrection1, static_cast<float>(1 - pow(beta1, n)));
  update.Store(kUpdateCorrection2, static_cast<float>(1 - pow(beta2, n)));
  const bool has_previous = previous_norm.present();
  const double previous = has_previous ? previous_norm.Load(0) : 0;
  const double norm = has_previous ? previous : sqrt(totals.Load(kTotalSquaredNorm));
  const double max_norm = own_max_norm < 0 ? hyper.Load(kHyperMaxNorm) : own_max_norm;
  const double factor = max_norm / (norm + 1e-6);
  const bool clips = max_norm > 0 && (previous > 0 || !has_previous) && factor < 1;
  update.Store(kUpdateGradientFactor, static_cast<float>((clips ? factor : 1.0) / loss_factor));
}

SHALE_KERNEL SHALE_BOUNDS(1) RecordNormKernel(Global<int64_t> valid_tokens, Global<double> totals,
                                              Global<double> weight_total, Global<double> norm) {
  if (!IsSkipped(totals, valid_tokens, weight_total)) norm.Store(0, sqrt(totals.Load(kTotalSquaredNorm)));
}

template <class... Params, class... Args>
absl::Status LaunchOne(const char* name, void (*kernel)(Params...), StreamHandle stream, const Args&... args) {
  return Launch(name, kernel, {.grid = dim3(1), .block = dim3(1)}, stream, args...);
}

}  // namespace

absl::Status Run(const MeanFactor& op, Scratch scratch, StreamHandle stream) {
  return LaunchOne("MeanFactor", MeanFactorKernel, stream, Whole<int64_t>(op.valid_tokens_1, "valid_tokens"),
                   Whole<double>(op.weight_total_1, "weight_total"), Whole<double>(op.loss_scale_3, "loss_scale"),
                   Whole<float>(op.factor_1, "factor"));
}

absl::Status Run(const FlagNonFinite& op, Scratch scratch, StreamHandle stream) {
  return LaunchOne("FlagNonFinite", FlagNonFiniteKernel, stream, Whole<double>(op.totals_3, "totals"),
                   Whole<double>(op.loss_scale_3, "loss_scale"));
}

absl::Status Run(const CombineTotals& op, Scratch scratch, StreamHandle stream) {
  return LaunchOne("CombineTotals", CombineTotalsKernel, stream, Whole<double>(op.groups_G3, "groups"),
                   Whole<double>(op.totals_3, "totals"), op.groups_G3.dim(0), op.keeps_loss);
}

absl::Status Run(const PrepareUpdate& op, Scratch scratch, StreamHandle stream) {
  return LaunchOne("PrepareUpdate", PrepareUpdateKernel, stream, Whole<float>(op.hyper_2, "hyper"),
                   Whole<int64_t>(op.valid_tokens_1, "valid_tokens"), Whole<double>(op.totals_3, "totals"),
                   Whole<int64_t>(op.update_count_1, "update_count"), Whole<float>(op.update_5, "update"),
                   Whole<int64_t>(op.number_1, "number"), Whole<double>(op.previous_norm_1, "previous_norm"),
                   Whole<double>(op.weight_total_1, "weight_total"), Whole<double>(op.loss_scale_3, "loss_scale"),
                   Scaling{op.growth_factor, op.backoff_factor, static_cast<double>(op.growth_interval)}, op.beta1,
                   op.beta2, op.counts, op.learning_rate_factor, op.max_norm);
}

absl::Status Run(const RecordNorm& op, Scratch scratch, StreamHandle stream) {
  return LaunchOne("RecordNorm", RecordNormKernel, stream, Whole<int64_t>(op.valid_tokens_1, "valid_tokens"),
                   Whole<double>(op.totals_3, "totals"), Whole<double>(op.weight_total_1, "weight_total"),
                   Whole<double>(op.norm_1, "norm"));
}

}  // namespace shale::cuda
