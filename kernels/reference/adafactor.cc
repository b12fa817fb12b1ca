#include "kernels/ops/adafactor.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/element_range.h"
#include "kernels/reference/scalar_ops.h"
#include "kernels/step_scalars.h"

namespace shale {
namespace {

// Calls visit(row, column, i) for each element of a parameter that lies in the shard, of which it is number i.
template <class Visit>
void ForEachOwn(const FactoredParameter& p, int64_t shard_begin, int64_t shard_elements, const Visit& visit) {
  const ElementRange own =
      Intersect({shard_begin - p.begin, shard_begin + shard_elements - p.begin}, {0, p.elements()});
  for (int64_t e = own.begin; e < own.end; ++e) visit(e / p.columns, e % p.columns, p.begin + e - shard_begin);
}

double Master(const Adafactor& op, int64_t i) {
  if (op.master_P.present()) return op.master_P.as<const float>()[i];
  if (op.weight_P.dtype == DType::kFloat32) return op.weight_P.as<const float>()[i];
  const BFloat16 weight = op.weight_P.as<const BFloat16>()[i];
  return op.low_P.present() ? JoinMaster(weight, op.low_P.as<const int16_t>()[i]) : ToFloat(weight);
}

double ClippedGradient(const Adafactor& op, int64_t i) {
  const double factor = op.update_5.as<const float>()[kUpdateGradientFactor];
  return op.gradient_P.as<const float>()[i] * factor;
}

void Sums(const Adafactor& op) {
  const int64_t factors = op.sums.elements();
  std::vector<double> sums(factors, 0);
  for (const FactoredParameter& p : *op.parameters) {
    ForEachOwn(p, op.shard_begin, op.gradient_P.elements(), [&](int64_t row, int64_t column, int64_t i) {
      const double g = ClippedGradient(op, i), square = g * g + Adafactor::kGradientEpsilon;
      if (p.row_begin >= 0) sums[p.row_begin + row] += square;
      sums[p.column_begin + column] += square;
    });
  }
  std::copy(sums.begin(), sums.end(), op.sums.as<float>());
}

void Moments(const Adafactor& op) {
  if (op.update_5.as<const float>()[kUpdateSkip] != 0) return;
  const double t = static_cast<double>(*op.number_1.as<const int64_t>());
  const double decay = 1 - std::pow(t, Adafactor::kDecayRate);
  const ElementRange shard = {op.shard_begin, op.shard_begin + op.moments.elements()};
  const auto update = [&](ElementRange factors, int64_t elements_of_one) {
    const ElementRange own = Intersect(shard, factors);
    for (int64_t f = own.begin - shard.begin; f < own.end - shard.begin; ++f) {
      float& moment = op.moments.as<float>()[f];
      const double mean = op.sums.as<const float>()[f] / static_cast<double>(elements_of_one);
      moment = static_cast<float>(decay * moment + (1 - decay) * mean);
    }
  };
  for (const FactoredParameter& p : *op.parameters) {
    if (p.row_begin >= 0) update({p.row_begin, p.row_begin + p.rows}, p.columns);
    update({p.column_begin, p.column_begin + p.columns}, p.rows);
  }
}

void Direction(const Adafactor& op) {
  const float* moments = op.moments.as<const float>();
  float* direction = op.direction_P.as<float>();
  double* totals = op.totals_Q2.as<double>();
  std::fill(direction, direction + op.direction_P.elements(), 0.0f);  // Also between parameters.
  for (const FactoredParameter& p : *op.parameters) {
    double mean = 0, squares = 0, parameter_squares = 0;
    if (p.row_begin >= 0) {
      for (int64_t row = 0; row < p.rows; ++row) mean += moments[p.row_begin + row];
      mean /= static_cast<double>(p.rows);
    }
    ForEachOwn(p, op.shard_begin, op.gradient_P.elements(), [&](int64_t row, int64_t column, int64_t i) {
      double u = ClippedGradient(op, i) / std::sqrt(static_cast<double>(moments[p.column_begin + column]));
      if (p.row_begin >= 0) u /= std::sqrt(moments[p.row_begin + row] / mean);
      const double master = Master(op, i);
      direction[i] = static_cast<float>(u);
      squares += u * u;
      parameter_squares += master * master;
    });
    *totals++ = squares;
    *totals++ = parameter_squares;
  }
}

void Scale(const Adafactor& op) {
  const float* update = op.update_5.as<const float>();
  const double t = static_cast<double>(*op.number_1.as<const int64_t>());
  const double relative = op.relative_step ? std::min(Adafactor::kRelativeStep, 1 / std::sqrt(t)) : 1;
  float* direction = op.direction_P.as<float>();
  const double* totals = op.totals_Q2.as<const double>();
  for (const FactoredParameter& p : *op.parameters) {
    const double n = static_cast<double>(p.elements());
    const double clip = std::max(1.0, std::sqrt(*totals++ / n)), size = std::sqrt(*totals++ / n);
    const double rate = update[kUpdateLearningRate] * relative *
                        (op.scale_parameter ? std::max(Adafactor::kParameterEpsilon, size) : 1);
    const double factor = (1 - static_cast<double>(op.beta1)) * rate / clip;
    const double decay = p.decays ? rate * op.weight_decay : 0;
    ForEachOwn(p, op.shard_begin, op.direction_P.elements(), [&](int64_t, int64_t, int64_t i) {
      direction[i] = static_cast<float>(factor * direction[i] + (decay == 0 ? 0 : decay * Master(op, i)));
    });
  }
  float* step = op.step_5.as<float>();
  std::fill(step, step + kUpdateSize, 1.0f);
  step[kUpdateSkip] = update[kUpdateSkip];
}

}  // namespace

absl::Status AdafactorOnHost(const Adafactor& op) {
  switch (op.stage) {
    case Adafactor::Stage::kSums: Sums(op); break;
    case Adafactor::Stage::kMoments: Moments(op); break;
    case Adafactor::Stage::kDirection: Direction(op); break;
    case Adafactor::Stage::kScale: Scale(op); break;
  }
  return absl::OkStatus();
}

}  // namespace shale
