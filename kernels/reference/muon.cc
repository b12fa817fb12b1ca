#include "kernels/ops/muon.h"

#include <cmath>

#include "kernels/counter_random.h"
#include "kernels/reference/element.h"
#include "kernels/reference/reference_kernels.h"
#include "kernels/step_scalars.h"

namespace shale::reference {
namespace {

void PutMomentum(const MuonDirection& op, int64_t i, double value) {
  if (!op.rounds()) {
    Put(op.momentum_P, i, value);
    return;
  }
  const RoundingStream stream = {
      .seed = op.seed, .number = *op.number_1.as<const int64_t>(), .group = op.group, .tensor = StateStream(0)};
  op.momentum_P.as<BFloat16>()[i] = RoundElement(stream, op.shard_begin + i, static_cast<float>(value));
}

}  // namespace

absl::Status Reference(const MuonDirection& op) {
  const float* const update = op.update_5.as<const float>();
  float* const step = op.step_5.as<float>();
  for (int i = 0; i < kUpdateSize; ++i) step[i] = 1;
  step[kUpdateLearningRate] = update[kUpdateLearningRate];
  step[kUpdateSkip] = update[kUpdateSkip];
  const bool skips = update[kUpdateSkip] != 0;
  const double factor = update[kUpdateGradientFactor], rest = 1 - op.beta;
  for (int64_t i = 0; i < op.direction_P.dim(0); ++i) {
    if (skips) {
      Put(op.direction_P, i, 0);
      continue;
    }
    const double g = Get(op.gradient_P, i) * factor, before = Get(op.momentum_P, i);
    const double m = before + rest * (g - before);
    PutMomentum(op, i, m);
    Put(op.direction_P, i, op.nesterov ? m + rest * (g - m) : m);
  }
  return absl::OkStatus();
}

absl::Status Reference(const DivideByNorm& op) {
  const double norm = std::sqrt(Get(op.squares_1, 0));
  const double factor = static_cast<float>(1 / (norm < op.epsilon ? op.epsilon : norm));
  for (int64_t i = 0; i < op.out_N.dim(0); ++i) Put(op.out_N, i, Get(op.x_N, i) * factor);
  return absl::OkStatus();
}

absl::Status Reference(const MatrixPolynomial& op) {
  const int64_t M = op.out_MM.dim(0);
  for (int64_t i = 0; i < M * M; ++i) {
    const double of_identity = i % (M + 1) == 0 ? op.a : 0;
    Put(op.out_MM, i,
        of_identity + static_cast<double>(op.b) * Get(op.x_MM, i) + static_cast<double>(op.c) * Get(op.y_MM, i));
  }
  return absl::OkStatus();
}

}  // namespace shale::reference
