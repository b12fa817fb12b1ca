// Cross-entropy. The kernel makes three passes over a row (largest logit, sum, gradient), the second and the third in
// cache. The second pass keeps the exponentials as fp32: in place of f32 logits, and for bf16 and f16 logits in a row
// of scratch per thread. With a cap, the capped logits are kept there, and their exponentials computed twice.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/cross_entropy.cc"
#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/exp-inl.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_prefetch.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/integers.h"
#include "kernels/ops/loss.h"
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

// The sums of a row add parts of this many elements in fp32 and the parts in fp64, because vocabularies are long. For
// each part, as many logits of the next row, which begins at `next` unless that is null, are prefetched.
constexpr int64_t kPart = 512;

// Returns the sum of e^(x - shift), where shift is the largest x.
template <class T>
double SumOfExp(const T* x, int64_t count, float shift, const T* next) {
  const auto add = [shift](Vector sum, Vector v) HWY_ATTR { return hn::Add(sum, Exp(hn::Sub(v, Splat(shift)))); };
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kPart) {
    const int64_t part = std::min(kPart, count - begin);
    if (next != nullptr) PrefetchElements(next + begin, part);
    total += SumOfLanes(Fold(part, add, x + begin));
  }
  return total;
}

// Returns the same bits as SumOfExp, and sets `kept`, which may be x, to e^(x - shift). For bf16, `kept` is in the
// order of LoadPair: a vector of elements with even indices, then one of elements with odd indices. Map restores the
// order when it converts them back to bf16.
template <class T>
double ExpAndSum(const T* x, int64_t count, float shift, float* kept, const T* next) {
  const auto exp = [shift](Vector v) HWY_ATTR { return Exp(hn::Sub(v, Splat(shift))); };
  const auto add = [](Vector sum, Vector v) HWY_ATTR { return hn::Add(sum, v); };
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kPart) {
    const int64_t part = std::min(kPart, count - begin);
    if (next != nullptr) PrefetchElements(next + begin, part);
    Map(part, exp, kept + begin, x + begin);
    total += SumOfLanes(Fold(part, add, kept + begin));
  }
  return total;
}

// Computes a row with a cap. `kept` has a float for each logit, and holds the capped ones in the order of ExpAndSum.
template <class T>
void CappedRow(const CrossEntropy& op, T* x, int64_t target, double weight, float* kept, float& loss) {
  const int64_t v = op.logits_TV.dim(1);
  const Vector cap = Splat(op.cap), inner = Splat(1 / op.cap);
  const auto capped = [=](Vector logit) HWY_ATTR { return hn::Mul(cap, Tanh(hn::Mul(logit, inner))); };
  // The same bits as in `kept`, so that a target with the largest logit is at no distance from it.
  const double at_target = hn::GetLane(capped(Splat(ToFloat(x[target]))));
  Map(v, capped, kept, x);
  const float largest = Largest(kept, v);
  const double below = at_target - largest, sum = SumOfExp<float>(kept, v, largest, nullptr);
  loss = static_cast<float>(weight * (std::log(sum) - below));
  if (!op.gradient) return;
  const double scale = weight * *op.scale_1.as<const float>();
  const Vector factor = Splat(static_cast<float>(scale / sum)), shift = Splat(largest);
  const auto gradient = [=](Vector logit) HWY_ATTR {
    const Vector t = hn::Mul(logit, inner);
    return hn::Mul(hn::Mul(Exp(hn::Sub(logit, shift)), factor), hn::NegMulAdd(t, t, Splat(1.0f)));
  };
  Map(v, gradient, x, kept);
  const double at_cap = 1 - at_target * at_target / (op.cap * op.cap);
  x[target] = RoundTo<T>(static_cast<float>((std::exp(below) / sum - 1) * at_cap * scale));
}

template <class T>
void CrossEntropyT(const CrossEntropy& op, int64_t begin, int64_t end, float* scratch_row) {
  const int64_t v = op.logits_TV.dim(1);
  const int32_t* targets = op.targets_T.as<const int32_t>();
  for (int64_t t = begin; t < end; ++t) {
    T* x = op.logits_TV.as<T>() + t * v;
    const int64_t target = targets[t * op.targets_T.stride(0)];
    float& loss = op.loss_T.as<float>()[t];
    const double weight = op.weights_T.present() ? op.weights_T.as<const float>()[t * op.weights_T.stride(0)] : 1;
    if (target < 0 || weight == 0) {
      loss = 0;
      if (op.gradient) std::fill(x, x + v, T());
      continue;
    }
    if (op.cap > 0) {
      CappedRow(op, x, target, weight, scratch_row, loss);
      continue;
    }
    const float largest = Largest(x, v);
    const double below = static_cast<double>(ToFloat(x[target])) - largest;
    float* kept = scratch_row;
    if constexpr (std::is_same_v<T, float>) kept = x;
    const T* next = t + 1 < op.logits_TV.dim(0) ? x + v : nullptr;
    const double sum = op.gradient ? ExpAndSum(x, v, largest, kept, next) : SumOfExp(x, v, largest, next);
    loss = static_cast<float>(weight * (std::log(sum) - below));
    if (!op.gradient) continue;
    const double scale = weight * *op.scale_1.as<const float>();
    const Vector factor = Splat(static_cast<float>(scale / sum));
    Map(
        v, [factor](Vector value) HWY_ATTR { return hn::Mul(value, factor); }, x, kept);
    // p - 1 is computed in fp64, because it approaches 0 as the model learns.
    x[target] = RoundTo<T>(static_cast<float>((std::exp(below) / sum - 1) * scale));
  }
}

// Computes rows [begin, end).
void CrossEntropyRows(const CrossEntropy& op, int64_t begin, int64_t end, float* scratch_row) {
  ForActivations(op.logits_TV.dtype,
                 [&](auto element) HWY_ATTR { CrossEntropyT<decltype(element)>(op, begin, end, scratch_row); });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {

HWY_EXPORT(CrossEntropyRows);

namespace {

// Returns the length, in floats, of a thread's row of exponentials: a multiple of a cache line, or 0 if the op needs no
// such row.
int64_t ScratchRow(const CrossEntropy& op) {
  if (op.cap == 0 && (!op.gradient || op.logits_TV.dtype == DType::kFloat32)) return 0;
  constexpr int64_t kLine = 16;
  return RoundUp(op.logits_TV.dim(1), kLine);
}

}  // namespace

int64_t ScratchBytesOf(const CrossEntropy& op, const Context& context) {
  return context.team->threads() * ScratchRow(op) * static_cast<int64_t>(sizeof(float));
}

absl::Status Run(const CrossEntropy& op, Scratch scratch, const Context& context) {
  const int64_t rows = op.logits_TV.dim(0), v = op.logits_TV.dim(1);
  SHALE_RETURN_IF_ERROR(CheckTargets(op.kName, op.targets_T, v));
  ParallelFor(*context.team, rows, RowsPerBlock(v), [&](int64_t begin, int64_t end, int thread) {
    auto* scratch_row = reinterpret_cast<float*>(scratch.data) + thread * ScratchRow(op);
    HWY_DYNAMIC_DISPATCH(CrossEntropyRows)(op, begin, end, scratch_row);
  });
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
