#include "kernels/reference/update.h"

#include <algorithm>
#include <variant>

#include "kernels/counter_random.h"
#include "kernels/ops/update.h"
#include "kernels/reference/element.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/reference/scalar_ops.h"
#include "kernels/step_scalars.h"

namespace shale::reference {

double Master(const Update& op, int64_t i) {
  if (op.master_P.present()) return Get(op.master_P, i);
  if (op.low_P.present()) return JoinMaster(op.weight_P.as<const BFloat16>()[i], op.low_P.as<const int16_t>()[i]);
  return Get(op.weight_P, i);
}

namespace {

// Returns the bf16 number to which element i of a tensor is rounded (RoundingStream::tensor).
BFloat16 Rounded(const Update& op, uint32_t tensor, int64_t i, float value) {
  const RoundingStream stream = {
      .seed = op.seed, .number = *op.number_1.as<const int64_t>(), .group = op.group, .tensor = tensor};
  return RoundElement(stream, op.shard_begin + i, value);
}

}  // namespace

void PutMaster(const Update& op, int64_t i, double value) {
  const float p = static_cast<float>(value);
  if (op.master_P.present()) Put(op.master_P, i, value);
  if (op.weight_P.dtype == DType::kBFloat16) {
    const BFloat16 weight = op.is_own_master() ? Rounded(op, kWeightStream, i, p) : RoundMaster(p);
    op.weight_P.as<BFloat16>()[i] = weight;
    if (op.low_P.present()) op.low_P.as<int16_t>()[i] = MasterLowBits(p, weight);
  } else {
    Put(op.weight_P, i, value);
  }
}

double PutState(const Update& op, int state, int64_t i, double value) {
  const Tensor& to = op.states[state];
  if (to.dtype != DType::kBFloat16) return Put(to, i, value);
  const float wide = static_cast<float>(value);
  to.as<BFloat16>()[i] = Rounded(op, StateStream(state), i, wide);
  return wide;
}

bool Decays(const Update& op, int64_t i) {
  if (op.decayed == nullptr) return false;
  const int64_t element = op.shard_begin + i;
  // The first range that ends after the element.
  const auto range = std::upper_bound(op.decayed->begin(), op.decayed->end(), element,
                                      [](int64_t at, const ElementRange& r) { return at < r.end; });
  return range != op.decayed->end() && range->begin <= element;
}

double DecayedMaster(const Update& op, int64_t i, const UpdateStep& step, float weight_decay) {
  double p = Master(op, i);
  if (Decays(op, i)) p -= step.rate * weight_decay * p;
  return p;
}

absl::Status Reference(const Adafactor& op) { return AdafactorOnHost(op); }

absl::Status Reference(const Update& op) {
  if (Get(op.update_5, kUpdateSkip) != 0) return absl::OkStatus();
  const UpdateStep step = {.rate = Get(op.update_5, kUpdateLearningRate),
                           .correction1 = Get(op.update_5, kUpdateCorrection1),
                           .correction2 = Get(op.update_5, kUpdateCorrection2),
                           .gradient_factor = Get(op.update_5, kUpdateGradientFactor)};
  std::visit([&](const auto& rule) { Apply(rule, op, step); }, op.rule);
  return absl::OkStatus();
}

}  // namespace shale::reference
