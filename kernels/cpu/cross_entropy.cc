// Cross-entropy. A row is read three times (largest, sum, gradient), all but the first from cache.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/reference/index_checks.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

template <class T>
float Largest(const T* x, int64_t count) {
  Vector largest = Splat(kMinusInfinity);
  ForVectors(count, [&](int64_t i, auto lanes) HWY_ATTR {
    largest = hn::Max(largest, FillRest(lanes, lanes.Load(x + i), kMinusInfinity));
  });
  return MaxOfLanes(largest);
}

// Sum of e^(x - shift). Parts of 1,024 in fp32, their sum in fp64: vocabularies are long.
template <class T>
double SumOfExp(const T* x, int64_t count, float shift) {
  constexpr int64_t kPart = 1024;
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kPart) {
    Vector sum = hn::Zero(Floats());
    ForVectors(std::min(kPart, count - begin), [&](int64_t i, auto lanes) HWY_ATTR {
      sum = hn::Add(sum, lanes.Keep(Exp(hn::Sub(lanes.Load(x + begin + i), Splat(shift)))));
    });
    total += SumOfLanes(sum);
  }
  return total;
}

HWY_INLINE void StoreOne(double value, float* to) { *to = static_cast<float>(value); }
HWY_INLINE void StoreOne(double value, BFloat16* to) { *to = RoundToBFloat16(static_cast<float>(value)); }

template <class T>
void CrossEntropyT(const CrossEntropy& op, int64_t begin, int64_t end) {
  const int64_t v = op.logits_TV.dim(1);
  const int32_t* targets = op.targets_T.as<const int32_t>();
  for (int64_t t = begin; t < end; ++t) {
    T* x = op.logits_TV.as<T>() + t * v;
    const int64_t target = targets[t * op.targets_T.stride(0)];
    float& loss = op.loss_T.as<float>()[t];
    if (target < 0) {
      loss = 0;
      if (op.gradient) std::fill(x, x + v, T());
      continue;
    }
    const float largest = Largest(x, v);
    const double sum = SumOfExp(x, v, largest);
    const double below = static_cast<double>(ToFloat(x[target])) - largest;
    loss = static_cast<float>(std::log(sum) - below);
    if (!op.gradient) continue;
    const double scale = *op.scale_1.as<const float>();
    const Vector factor = Splat(static_cast<float>(scale / sum));
    ForVectors(v, [&](int64_t i, auto lanes) HWY_ATTR {
      lanes.Store(hn::Mul(Exp(hn::Sub(lanes.Load(x + i), Splat(largest))), factor), x + i);
    });
    // p - 1 in fp64: it vanishes as the model learns.
    StoreOne((std::exp(below) / sum - 1) * scale, x + target);
  }
}

// Rows [begin, end).
void CrossEntropyRows(const CrossEntropy& op, int64_t begin, int64_t end) {
  op.logits_TV.dtype == DType::kFloat32 ? CrossEntropyT<float>(op, begin, end)
                                        : CrossEntropyT<BFloat16>(op, begin, end);
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {

HWY_EXPORT(CrossEntropyRows);

absl::Status Run(const CrossEntropy& op, Scratch scratch, const Context& context) {
  const int64_t rows = op.logits_TV.dim(0), v = op.logits_TV.dim(1);
  SHALE_RETURN_IF_ERROR(CheckTargets(op.kName, op.targets_T, v));
  ParallelFor(context.threads, rows, RowsPerBlock(v), [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(CrossEntropyRows)(op, begin, end);
  });
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
