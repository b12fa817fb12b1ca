// The ops of Muon that are no matmuls. Each makes one pass over memory, which bounds it.
#include <algorithm>
#include <cmath>

#include "kernels/ops/muon.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/update_muon.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/random-inl.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/integers.h"
#include "kernels/step_scalars.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// Calls kernel(T()) with the type of elements of f32 or bf16.
template <class Kernel>
HWY_INLINE void ForMuonType(DType dtype, const Kernel& kernel) {
  if (dtype == DType::kFloat32) return kernel(float());
  kernel(BFloat16());
}

template <class Lanes>
HWY_INLINE void StoreMomentum(Lanes lanes, Vector m, const uint16_t*, int64_t i, float* to) {
  lanes.Store(m, to + i);
}
template <class Lanes>
HWY_INLINE void StoreMomentum(Lanes lanes, Vector m, const uint16_t* random, int64_t i, BFloat16* to) {
  StoreStochastically(lanes, m, random + i, to + i);
}

// Computes `count` elements from element `at` of the shard on. `random` has the bits for a bf16 momentum.
template <class Momentum, class Direction>
HWY_INLINE void DirectionRun(const MuonDirection& op, int64_t at, int64_t count, const uint16_t* random) {
  const float* const gradient = op.gradient_P.as<const float>() + at;
  Momentum* const momentum = op.momentum_P.as<Momentum>() + at;
  Direction* const direction = op.direction_P.as<Direction>() + at;
  const Floats d;
  const Vector factor = hn::Set(d, op.update_5.as<const float>()[kUpdateGradientFactor]);
  const Vector rest = hn::Set(d, 1 - op.beta);
  const bool nesterov = op.nesterov;
  ForVectors(count, [&](int64_t i, auto lanes) HWY_ATTR {
    const Vector g = hn::Mul(lanes.Load(gradient + i), factor), before = lanes.Load(momentum + i);
    const Vector m = hn::MulAdd(rest, hn::Sub(g, before), before);
    StoreMomentum(lanes, m, random, i, momentum);
    lanes.Store(nesterov ? hn::MulAdd(rest, hn::Sub(g, m), m) : m, direction + i);
  });
}

// Computes elements [begin, end) of the shard. `begin` is a multiple of kRandomBlock.
void DirectionElements(const MuonDirection& op, int64_t begin, int64_t end) {
  HWY_ALIGN uint16_t random[kRandomChunk] = {};
  const int64_t chunk = op.rounds() ? kRandomChunk : end - begin;
  for (int64_t at = begin; at < end; at += chunk) {
    const int64_t count = std::min(end - at, chunk);
    if (!op.rounds()) {
      ForMuonType(op.direction_P.dtype,
                  [&](auto to) HWY_ATTR { DirectionRun<float, decltype(to)>(op, at, count, nullptr); });
      continue;
    }
    const RoundingStream stream = {
        .seed = op.seed, .number = *op.number_1.as<const int64_t>(), .group = op.group, .tensor = StateStream(0)};
    StoreRandomBits(stream, op.shard_begin + at, count, random);
    ForMuonType(op.direction_P.dtype,
                [&](auto to) HWY_ATTR { DirectionRun<BFloat16, decltype(to)>(op, at, count, random); });
  }
}

// Multiplies elements [begin, end) of x.
void ScaleElements(const DivideByNorm& op, float factor, int64_t begin, int64_t end) {
  const Vector by = hn::Set(Floats(), factor);
  ForMuonType(op.out_N.dtype, [&](auto type) HWY_ATTR {
    const auto* x = op.x_N.as<const decltype(type)>() + begin;
    auto* out = op.out_N.as<decltype(type)>() + begin;
    ForVectors(end - begin,
               [&](int64_t i, auto lanes) HWY_ATTR { lanes.Store(hn::Mul(lanes.Load(x + i), by), out + i); });
  });
}

// Computes elements [begin, end) of the matrix in row-major order. Goes from one element of the diagonal to the next.
template <class T>
HWY_INLINE void PolynomialRun(const MatrixPolynomial& op, int64_t begin, int64_t end) {
  const int64_t step = op.out_MM.dim(0) + 1;  // Between elements of the diagonal.
  const T *x = op.x_MM.as<const T>(), *y = op.y_MM.as<const T>();
  T* const out = op.out_MM.as<T>();
  const Floats d;
  const Vector b = hn::Set(d, op.b), c = hn::Set(d, op.c);
  const auto run = [&](int64_t from, int64_t to, float add) HWY_ATTR {
    const Vector a = hn::Set(d, add);
    ForVectors(to - from, [&](int64_t offset, auto lanes) HWY_ATTR {
      const int64_t i = from + offset;
      const Vector rest = hn::MulAdd(c, lanes.Load(y + i), a);
      lanes.Store(hn::MulAdd(b, lanes.Load(x + i), rest), out + i);
    });
  };
  for (int64_t i = begin; i < end;) {
    const int64_t diagonal = std::min(end, CeilDivide(i, step) * step);
    run(i, diagonal, 0);
    i = std::min(end, diagonal + 1);
    run(diagonal, i, op.a);
  }
}
void PolynomialElements(const MatrixPolynomial& op, int64_t begin, int64_t end) {
  ForMuonType(op.out_MM.dtype, [&](auto type) HWY_ATTR { PolynomialRun<decltype(type)>(op, begin, end); });
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(DirectionElements);
HWY_EXPORT(ScaleElements);
HWY_EXPORT(PolynomialElements);

}  // namespace

absl::Status Run(const MuonDirection& op, Scratch scratch, const Context& context) {
  const float* const update = op.update_5.as<const float>();
  float* const step = op.step_5.as<float>();
  std::fill(step, step + kUpdateSize, 1.0f);
  step[kUpdateLearningRate] = update[kUpdateLearningRate];
  step[kUpdateSkip] = update[kUpdateSkip];
  if (update[kUpdateSkip] != 0) {
    std::fill_n(op.direction_P.as<std::byte>(), op.direction_P.extent_bytes(), std::byte{0});
    return absl::OkStatus();
  }
  ParallelFor(*context.team, op.direction_P.dim(0), kElementsPerBlock, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(DirectionElements)(op, begin, end);
  });
  return absl::OkStatus();
}

absl::Status Run(const DivideByNorm& op, Scratch scratch, const Context& context) {
  const double norm = std::sqrt(*op.squares_1.as<const double>());
  const auto factor = static_cast<float>(1 / (norm < op.epsilon ? op.epsilon : norm));
  ParallelFor(*context.team, op.out_N.dim(0), kElementsPerBlock, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(ScaleElements)(op, factor, begin, end);
  });
  return absl::OkStatus();
}

absl::Status Run(const MatrixPolynomial& op, Scratch scratch, const Context& context) {
  ParallelFor(*context.team, op.out_MM.elements(), kElementsPerBlock, [&](int64_t begin, int64_t end) {
    HWY_DYNAMIC_DISPATCH(PolynomialElements)(op, begin, end);
  });
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
