#include <algorithm>
#include <cmath>

#include "kernels/reference/element.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/reference/scalar_ops.h"

namespace shale::reference {
namespace {

// Returns whether element `i` of the group lies in one of the ranges.
bool InRanges(const std::vector<ElementRange>* ranges, int64_t i) {
  if (ranges == nullptr) return false;
  // The first range that ends after i.
  const auto range =
      std::upper_bound(ranges->begin(), ranges->end(), i, [](int64_t at, const ElementRange& r) { return at < r.end; });
  return range != ranges->end() && range->begin <= i;
}

double Master(const AdamW& op, int64_t i) {
  if (op.master_P.present()) return Get(op.master_P, i);
  if (op.low_P.present()) return JoinMaster(op.weight_P.as<const BFloat16>()[i], op.low_P.as<const int16_t>()[i]);
  return Get(op.weight_P, i);
}

void PutMaster(const AdamW& op, int64_t i, double value) {
  const float p = static_cast<float>(value);
  if (op.master_P.present()) Put(op.master_P, i, value);
  if (op.weight_P.dtype == DType::kBFloat16) {
    const BFloat16 weight = RoundMaster(p);
    op.weight_P.as<BFloat16>()[i] = weight;
    if (op.low_P.present()) op.low_P.as<int16_t>()[i] = MasterLowBits(p, weight);
  } else {
    Put(op.weight_P, i, value);
  }
}

}  // namespace

absl::Status Reference(const LossScale& op) { return RunOnHost(op); }

absl::Status Reference(const FlagNonFinite& op) { return RunOnHost(op); }

absl::Status Reference(const PrepareUpdate& op) { return RunOnHost(op); }

absl::Status Reference(const AdamW& op) {
  if (Get(op.update_5, kUpdateSkip) != 0) return absl::OkStatus();
  const double rate = Get(op.update_5, kUpdateLearningRate);
  const double correction1 = Get(op.update_5, kUpdateCorrection1);
  const double correction2 = Get(op.update_5, kUpdateCorrection2);
  const double factor = Get(op.update_5, kUpdateGradientFactor);
  const double beta1 = op.beta1, beta2 = op.beta2;
  for (int64_t i = 0; i < op.weight_P.dim(0); ++i) {
    const double g = Get(op.gradient_P, i) * factor;
    double p = Master(op, i);
    if (InRanges(op.decayed.get(), op.shard_begin + i)) p -= rate * op.weight_decay * p;
    const double m = Put(op.m_P, i, Get(op.m_P, i) + (1 - beta1) * (g - Get(op.m_P, i)));
    const double v = Put(op.v_P, i, beta2 * Get(op.v_P, i) + (1 - beta2) * g * g);
    PutMaster(op, i, p - rate / correction1 * m / (std::sqrt(v) / std::sqrt(correction2) + op.epsilon));
  }
  return absl::OkStatus();
}

}  // namespace shale::reference
