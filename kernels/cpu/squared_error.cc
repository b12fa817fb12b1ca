// The squared error and its gradient. The kernel makes one pass over a row and is bound by memory.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/squared_error.cc"
#include <algorithm>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/ops/loss.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// Returns the sum of squares of x - target, and sets gradient = factor (x - target) unless it is null. Sums parts of
// 1,024 elements in fp32 and adds the parts in fp64.
template <class T>
double SquaresOf(const T* x, const float* target, int64_t count, float factor, T* gradient) {
  constexpr int64_t kPart = 1024;
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kPart) {
    Vector squares = hn::Zero(Floats());
    ForVectors(std::min(kPart, count - begin), [&](int64_t i, auto lanes) HWY_ATTR {
      const int64_t at = begin + i;
      const Vector difference = hn::Sub(lanes.Load(x + at), lanes.Load(target + at));
      squares = hn::MulAdd(difference, difference, squares);
      if (gradient != nullptr) lanes.Store(hn::Mul(difference, Splat(factor)), gradient + at);
    });
    total += SumOfLanes(squares);
  }
  return total;
}

template <class T>
void SquaredErrorT(const SquaredError& op, int64_t begin, int64_t end) {
  const int64_t d = op.prediction_TD.dim(1);
  const double scale = op.d_prediction_TD.present() ? *op.scale_1.as<const float>() : 0;
  for (int64_t t = begin; t < end; ++t) {
    const double weight = op.weights_T.present() ? op.weights_T.as<const float>()[t * op.weights_T.stride(0)] : 1;
    float& loss = op.loss_T.as<float>()[t];
    T* gradient = op.d_prediction_TD.present() ? op.d_prediction_TD.as<T>() + t * d : nullptr;
    if (weight == 0) {
      loss = 0;
      if (gradient != nullptr) std::fill(gradient, gradient + d, T());
      continue;
    }
    const float* target = op.targets_TD.as<const float>() + t * op.targets_TD.stride(0);
    const double mean = 1 / static_cast<double>(d);
    const float factor = static_cast<float>(2 * weight * scale * mean);
    loss = static_cast<float>(weight * mean *
                              SquaresOf(op.prediction_TD.as<const T>() + t * d, target, d, factor, gradient));
  }
}

// Computes rows [begin, end).
void SquaredErrorRows(const SquaredError& op, int64_t begin, int64_t end) {
  ForActivations(op.prediction_TD.dtype,
                 [&](auto element) HWY_ATTR { SquaredErrorT<decltype(element)>(op, begin, end); });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {

HWY_EXPORT(SquaredErrorRows);

absl::Status Run(const SquaredError& op, Scratch scratch, const Context& context) {
  ParallelFor(*context.team, op.prediction_TD.dim(0), RowsPerBlock(op.prediction_TD.dim(1)),
              [&](int64_t begin, int64_t end) {
                HWY_DYNAMIC_DISPATCH(SquaredErrorRows)
                (op, begin, end);
              });
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
