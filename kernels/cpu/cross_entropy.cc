// Cross-entropy. A row is read three times (largest, sum, gradient), all but the first from cache. In f32 the second time
// leaves the exponentials behind.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

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
  const int64_t step = 2 * static_cast<int64_t>(hn::Lanes(Floats()));
  int64_t i = 0;
  for (; i + step <= count; i += step) {
    const Pair pair = LoadPair(x + i);
    largest = hn::Max(largest, hn::Max(pair.a, pair.b));
  }
  ForVectors(count - i, [&](int64_t j, auto lanes) HWY_ATTR {
    largest = hn::Max(largest, FillRest(lanes, lanes.Load(x + i + j), kMinusInfinity));
  });
  return MaxOfLanes(largest);
}

// Sum of e^(x - shift), shift being the largest x. Parts of 1,024 in fp32, their sum in fp64: vocabularies are long.
template <class T>
double SumOfExp(const T* x, int64_t count, float shift) {
  constexpr int64_t kPart = 1024;
  const auto add = [shift](Vector sum, Vector v) HWY_ATTR {
    return hn::Add(sum, Exp(hn::Sub(v, Splat(shift))));
  };
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kPart) {
    total += SumOfLanes(Fold(std::min(kPart, count - begin), add, x + begin));
  }
  return total;
}

// The same, and x becomes e^(x - shift).
double ExpAndSum(float* x, int64_t count, float shift) {
  constexpr int64_t kPart = 1024;
  const auto exp = [shift](Vector v) HWY_ATTR { return Exp(hn::Sub(v, Splat(shift))); };
  const auto add = [](Vector sum, Vector v) HWY_ATTR { return hn::Add(sum, v); };
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kPart) {
    const int64_t part = std::min(kPart, count - begin);
    Map(part, exp, x + begin, x + begin);
    total += SumOfLanes(Fold(part, add, x + begin));
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
    const double below = static_cast<double>(ToFloat(x[target])) - largest;
    // Exponentials are worth keeping where they lose no bits by it.
    constexpr bool kKept = std::is_same_v<T, float>;
    double sum;
    if constexpr (kKept) {
      sum = op.gradient ? ExpAndSum(x, v, largest) : SumOfExp(x, v, largest);
    } else {
      sum = SumOfExp(x, v, largest);
    }
    loss = static_cast<float>(std::log(sum) - below);
    if (!op.gradient) continue;
    const double scale = *op.scale_1.as<const float>();
    const Vector factor = Splat(static_cast<float>(scale / sum));
    Map(v, [=](Vector value) HWY_ATTR {
      return hn::Mul(kKept ? value : Exp(hn::Sub(value, Splat(largest))), factor);
    }, x, x);
    // p - 1 in fp64: it vanishes as the model learns.
    StoreOne((std::exp(below) / sum - 1) * scale, x + target);
  }
}

// Rows [begin, end).
void CrossEntropyRows(const CrossEntropy& op, int64_t begin, int64_t end) {
  ForActivations(op.logits_TV.dtype, [&](auto element) HWY_ATTR { CrossEntropyT<decltype(element)>(op, begin, end); });
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
