// Rotary embedding. The cosines and sines of a position serve all its rows (B sequences, H heads). They come from those
// of the position before by one rotation in fp64, and anew from the angle every kPositions: an error of 32 x 2^-53 at
// most, for a hundredth of the sines and cosines. Nothing is kept between launches.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rope.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#include <omp.h>

#include <cmath>

#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/reference/rope_frequency.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

template <class T>
void TurnT(const Tensor& x_BSHD, int64_t position, const float* cosines, const float* sines) {
  const int64_t half = x_BSHD.dim(3) / 2;
  for (int64_t b = 0; b < x_BSHD.dim(0); ++b) {
    for (int64_t h = 0; h < x_BSHD.dim(2); ++h) {
      T* first = x_BSHD.as<T>() + b * x_BSHD.stride(0) + position * x_BSHD.stride(1) + h * x_BSHD.stride(2);
      T* second = first + half;
      ForVectors(half, [&](int64_t i, auto lanes) HWY_ATTR {
        const Vector x = lanes.Load(first + i), y = lanes.Load(second + i);
        const Vector cosine = lanes.Load(cosines + i), sine = lanes.Load(sines + i);
        lanes.Store(hn::NegMulAdd(y, sine, hn::Mul(x, cosine)), first + i);
        lanes.Store(hn::MulAdd(x, sine, hn::Mul(y, cosine)), second + i);
      });
    }
  }
}

// Turns all rows of one position.
void Turn(const Tensor& x_BSHD, int64_t position, const float* cosines, const float* sines) {
  x_BSHD.dtype == DType::kFloat32 ? TurnT<float>(x_BSHD, position, cosines, sines)
                                  : TurnT<BFloat16>(x_BSHD, position, cosines, sines);
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(Turn);

constexpr int64_t kPositions = 32;

// What a launch computes once, and what each thread works with: arrays of D/2 in scratch.
struct RopeScratch {
  RopeScratch(const Rope& op, std::byte* data, int thread) : half(op.x_BSHD.dim(3) / 2) {
    double* doubles = reinterpret_cast<double*>(data);
    frequency = doubles;
    step_cosine = doubles + half;
    step_sine = doubles + 2 * half;
    double* own = doubles + (3 + thread * 3) * half;
    cosine = own;
    sine = own + half;
    cosines = reinterpret_cast<float*>(own + 2 * half);
    sines = cosines + half;
  }
  static int64_t SizeBytes(const Rope& op, int threads) {
    return (3 + 3 * threads) * (op.x_BSHD.dim(3) / 2) * static_cast<int64_t>(sizeof(double));
  }

  int64_t half;
  double *frequency, *step_cosine, *step_sine;  // Shared, read only once the threads start.
  double *cosine, *sine;
  float *cosines, *sines;
};

}  // namespace

int64_t ScratchBytesOf(const Rope& op, const Context& context) { return RopeScratch::SizeBytes(op, context.threads); }

absl::Status Run(const Rope& op, Scratch scratch, const Context& context) {
  const RopeScratch shared(op, scratch.data, 0);
  for (int64_t i = 0; i < shared.half; ++i) {
    const double frequency = RopeFrequency(op.theta, op.scaling, i, op.x_BSHD.dim(3)) * (op.inverse ? -1 : 1);
    shared.frequency[i] = frequency;
    shared.step_cosine[i] = std::cos(frequency);
    shared.step_sine[i] = std::sin(frequency);
  }
  ParallelFor(context.threads, op.x_BSHD.dim(1), kPositions, [&](int64_t begin, int64_t end) {
    const RopeScratch own(op, scratch.data, omp_get_thread_num());
    for (int64_t position = begin; position < end; ++position) {
      for (int64_t i = 0; i < own.half; ++i) {
        if (position == begin) {
          const double angle = static_cast<double>(position) * own.frequency[i];
          own.cosine[i] = std::cos(angle);
          own.sine[i] = std::sin(angle);
        } else {
          const double cosine = own.cosine[i], sine = own.sine[i];
          own.cosine[i] = cosine * own.step_cosine[i] - sine * own.step_sine[i];
          own.sine[i] = sine * own.step_cosine[i] + cosine * own.step_sine[i];
        }
        own.cosines[i] = static_cast<float>(own.cosine[i]);
        own.sines[i] = static_cast<float>(own.sine[i]);
      }
      HWY_DYNAMIC_DISPATCH(Turn)(op.x_BSHD, position, own.cosines, own.sines);
    }
  });
  return absl::OkStatus();
}

}  // namespace shale::cpu
#endif
