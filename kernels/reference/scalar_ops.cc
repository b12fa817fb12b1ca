#include "kernels/reference/scalar_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/ops/flat.h"
#include "kernels/ops/scalars.h"
#include "kernels/step_scalars.h"

namespace shale {

namespace {

// Each rank flags its own values. Values that are finite on every rank may still overflow in the sum.
bool AreFinite(const double* totals) {
  return totals[kTotalNonFinite] == 0 && std::isfinite(totals[kTotalLoss]) && std::isfinite(totals[kTotalSquaredNorm]);
}

bool HasTargets(const Tensor& valid_tokens_1, const Tensor& weight_total_1) {
  const bool weighted = !weight_total_1.present() || *weight_total_1.as<const double>() > 0;
  return weighted && *valid_tokens_1.as<const int64_t>() > 0;
}

// Returns whether the totals of a step or of a group say that no update is made.
bool IsSkipped(const double* totals, const Tensor& valid_tokens_1, const Tensor& weight_total_1) {
  return !AreFinite(totals) || !HasTargets(valid_tokens_1, weight_total_1);
}

double FactorOf(const Tensor& loss_scale_3) {
  return loss_scale_3.present() ? loss_scale_3.as<const double>()[kLossScaleFactor] : 1;
}

void AdjustLossScale(const PrepareUpdate& op) {
  if (!op.counts || !op.loss_scale_3.present() || !HasTargets(op.valid_tokens_1, op.weight_total_1)) return;
  double* scale = op.loss_scale_3.as<double>();
  if (!AreFinite(op.totals_3.as<const double>())) {
    scale[kLossScaleFactor] *= op.backoff_factor;
    scale[kLossScaleGoodSteps] = 0;
    scale[kLossScaleSkips] += 1;
    return;
  }
  scale[kLossScaleSkips] = 0;
  scale[kLossScaleGoodSteps] += 1;
  if (scale[kLossScaleGoodSteps] < static_cast<double>(op.growth_interval)) return;
  scale[kLossScaleGoodSteps] = 0;
  const double grown = scale[kLossScaleFactor] * op.growth_factor;
  if (grown <= std::numeric_limits<float>::max()) scale[kLossScaleFactor] = grown;
}

}  // namespace

absl::Status RunOnHost(const MeanFactor& op) {
  const Tensor& total = op.weight_total_1;
  const double divisor =
      total.present() ? *total.as<const double>() : static_cast<double>(*op.valid_tokens_1.as<const int64_t>());
  *op.factor_1.as<float>() = divisor > 0 ? static_cast<float>(FactorOf(op.loss_scale_3) / divisor) : 0.0f;
  return absl::OkStatus();
}

absl::Status RunOnHost(const FlagNonFinite& op) {
  double* totals = op.totals_3.as<double>();
  const double factor = FactorOf(op.loss_scale_3);
  totals[kTotalSquaredNorm] /= factor * factor;
  const bool finite = std::isfinite(totals[kTotalLoss]) && std::isfinite(totals[kTotalSquaredNorm]);
  totals[kTotalNonFinite] = finite ? 0 : 1;
  if (finite) return absl::OkStatus();
  totals[kTotalSquaredNorm] = 0;
  if (!op.loss_scale_3.present()) totals[kTotalLoss] = 0;
  return absl::OkStatus();
}

absl::Status RunOnHost(const CombineTotals& op) {
  const double* groups = op.groups_G3.as<const double>();
  double squared_norm = 0, flag = 0;
  for (int64_t g = 0; g < op.groups_G3.dim(0); ++g) {
    squared_norm += groups[g * kTotalSize + kTotalSquaredNorm];
    flag = std::max(flag, groups[g * kTotalSize + kTotalNonFinite]);
  }
  double* totals = op.totals_3.as<double>();
  totals[kTotalLoss] = flag == 0 || op.keeps_loss ? groups[kTotalLoss] : 0;
  totals[kTotalSquaredNorm] = flag == 0 ? squared_norm : 0;
  totals[kTotalNonFinite] = flag;
  return absl::OkStatus();
}

absl::Status RunOnHost(const PrepareUpdate& op) {
  const float* hyper = op.hyper_2.as<const float>();
  const double* totals = op.totals_3.as<const double>();
  int64_t& count = *op.update_count_1.as<int64_t>();
  float* update = op.update_5.as<float>();

  const bool skip = IsSkipped(totals, op.valid_tokens_1, op.weight_total_1);
  if (op.number_1.present()) *op.number_1.as<int64_t>() = count + 1;
  update[kUpdateLearningRate] = hyper[kHyperLearningRate] * op.learning_rate_factor;
  update[kUpdateSkip] = skip ? 1.0f : 0.0f;
  if (skip) {
    update[kUpdateCorrection1] = 1;
    update[kUpdateCorrection2] = 1;
    update[kUpdateGradientFactor] = 0;
    AdjustLossScale(op);
    return absl::OkStatus();
  }
  const double n = static_cast<double>(count + 1);
  if (op.counts) ++count;
  update[kUpdateCorrection1] = static_cast<float>(1 - std::pow(op.beta1, n));
  update[kUpdateCorrection2] = static_cast<float>(1 - std::pow(op.beta2, n));
  const double max_norm = op.max_norm < 0 ? hyper[kHyperMaxNorm] : op.max_norm;
  const double previous = op.previous_norm_1.present() ? *op.previous_norm_1.as<const double>() : 0;
  const double norm = op.previous_norm_1.present() ? previous : std::sqrt(totals[kTotalSquaredNorm]);
  const bool clips = max_norm > 0 && (previous > 0 || !op.previous_norm_1.present());
  const double clip = clips ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
  update[kUpdateGradientFactor] = static_cast<float>(clip / FactorOf(op.loss_scale_3));
  AdjustLossScale(op);
  return absl::OkStatus();
}

absl::Status RunOnHost(const RecordNorm& op) {
  const double* totals = op.totals_3.as<const double>();
  if (IsSkipped(totals, op.valid_tokens_1, op.weight_total_1)) return absl::OkStatus();
  *op.norm_1.as<double>() = std::sqrt(totals[kTotalSquaredNorm]);
  return absl::OkStatus();
}

absl::Status RunOnHost(const ZeroRanges& op) {
  const int64_t size = SizeOf(op.x_N.dtype);
  auto* x = op.x_N.as<std::byte>();
  for (const ElementRange& range : *op.ranges) {
    std::memset(x + range.begin * size, 0, static_cast<size_t>((range.end - range.begin) * size));
  }
  return absl::OkStatus();
}

RoundingStream RoundingOf(const Accumulate& op) {
  return {.seed = op.seed,
          .number = *op.update_count_1.as<const int64_t>() + 1,
          .group = op.group,
          .tensor = op.stream,
          .micro_batch = op.micro_batch_1.present() ? *op.micro_batch_1.as<const int64_t>() : 0};
}

}  // namespace shale
