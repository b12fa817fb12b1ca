// Sums of a matmul that stay in registers.

#if defined(SHALE_KERNELS_CPU_ACCUMULATORS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SHALE_KERNELS_CPU_ACCUMULATORS_INL_H_
#undef SHALE_KERNELS_CPU_ACCUMULATORS_INL_H_
#else
#define SHALE_KERNELS_CPU_ACCUMULATORS_INL_H_
#endif

#include "kernels/cpu/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// kRows x kVectors vectors of accumulators; `right` is used only if kVectors is 2. The rows are nested structs, because
// GCC at -O2 would put an array of vectors into memory.
template <int kRows, int kVectors>
struct Accumulators {
  Vector left, right;
  Accumulators<kRows - 1, kVectors> below;

  HWY_INLINE void Clear() {
    left = hn::Zero(Floats());
    if constexpr (kVectors == 2) right = hn::Zero(Floats());
    below.Clear();
  }
  HWY_INLINE void Load(const float* c, int64_t stride) {
    left = HWY_NAMESPACE::Load(c);
    if constexpr (kVectors == 2) right = HWY_NAMESPACE::Load(c + hn::Lanes(Floats()));
    below.Load(c + stride, stride);
  }
  HWY_INLINE void MulAdd(const float* a, int64_t stride, Vector b_left, Vector b_right) {
    const Vector x = Splat(*a);
    left = hn::MulAdd(x, b_left, left);
    if constexpr (kVectors == 2) right = hn::MulAdd(x, b_right, right);
    below.MulAdd(a + stride, stride, b_left, b_right);
  }
  HWY_INLINE void Scale(Vector factor) {
    left = hn::Mul(left, factor);
    if constexpr (kVectors == 2) right = hn::Mul(right, factor);
    below.Scale(factor);
  }
  HWY_INLINE void Store(float* c, int64_t stride) const {
    HWY_NAMESPACE::Store(left, c);
    if constexpr (kVectors == 2) HWY_NAMESPACE::Store(right, c + hn::Lanes(Floats()));
    below.Store(c + stride, stride);
  }
  HWY_INLINE void Add(const float* c, int64_t stride) {
    left = hn::Add(HWY_NAMESPACE::Load(c), left);
    if constexpr (kVectors == 2) right = hn::Add(HWY_NAMESPACE::Load(c + hn::Lanes(Floats())), right);
    below.Add(c + stride, stride);
  }
};
template <int kVectors>
struct Accumulators<0, kVectors> {
  HWY_INLINE void Clear() {}
  HWY_INLINE void Load(const float*, int64_t) {}
  HWY_INLINE void MulAdd(const float*, int64_t, Vector, Vector) {}
  HWY_INLINE void Scale(Vector) {}
  HWY_INLINE void Store(float*, int64_t) const {}
  HWY_INLINE void Add(const float*, int64_t) {}
};

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
