// The 8-bit floating-point formats of OCP's "8-bit Floating Point Specification" (2023), and conversions to and from
// fp32. They are storage types only, like BFloat16.
//
//   Float8E4M3   4 bits of exponent (bias 7), 3 of fraction: up to 448, 2^-9 apart near zero. It has no infinity, and
//                two NaNs: 0x7F and 0xFF.
//   Float8E5M2   5 bits of exponent (bias 15), 2 of fraction: up to 57,344, 2^-16 apart near zero. Infinities and NaNs
//                as in IEEE 754.
//
// Kernels for GPUs call the functions that are constexpr.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/dtype.h"

namespace shale {

struct Float8E4M3 {
  uint8_t bits = 0;
  static constexpr DType kDType = DType::kFloat8E4M3;
  static constexpr int kFractionBits = 3;
  static constexpr uint32_t kBiasDifference = 120;  // The bias of fp32, 127, less that of the format.
  static constexpr float kLargest = 448;            // The largest finite value.
  // fp32 numbers between this one and twice as much are as far apart as the subnormals of the format.
  static constexpr float kApartAsSubnormals = 0x1p14f;
};

struct Float8E5M2 {
  uint8_t bits = 0;
  static constexpr DType kDType = DType::kFloat8E5M2;
  static constexpr int kFractionBits = 2;
  static constexpr uint32_t kBiasDifference = 112;
  static constexpr float kLargest = 57344;
  static constexpr float kApartAsSubnormals = 0x1p7f;
};

// Returns the largest finite value of a format.
constexpr float LargestFloat8(DType dtype) {
  return dtype == DType::kFloat8E4M3 ? Float8E4M3::kLargest : Float8E5M2::kLargest;
}

// Exact.
inline float ToFloat(Float8E4M3 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x80) << 24;
  const uint32_t exponent = x.bits >> 3 & 0xF, fraction = x.bits & 7;
  if ((x.bits & 0x7F) == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000);
  if (exponent != 0)
    return std::bit_cast<float>(sign | (exponent + Float8E4M3::kBiasDifference) << 23 | fraction << 20);
  const float magnitude = static_cast<float>(fraction) * 0x1p-9f;  // Zero or subnormal.
  return sign != 0 ? -magnitude : magnitude;
}

// A float8 e5m2 is the upper half of an IEEE half. Exact.
inline float ToFloat(Float8E5M2 x) { return ToFloat(Float16{static_cast<uint16_t>(x.bits << 8)}); }

namespace internal {

constexpr uint8_t SignOfFloat8(float x) { return static_cast<uint8_t>(std::bit_cast<uint32_t>(x) >> 24 & 0x80); }

// Returns the lower seven bits of the number that is nearest to fp32 bits without sign, of two equally near ones the
// even one. REQUIRES: the result is finite
template <class T>
constexpr uint8_t NearestFloat8(uint32_t magnitude) {
  constexpr int kDropped = 23 - T::kFractionBits;
  constexpr uint32_t kBias = T::kBiasDifference << 23, kLeastNormal = kBias + (1 << 23);
  constexpr uint32_t kApart = std::bit_cast<uint32_t>(T::kApartAsSubnormals);
  if (magnitude < kLeastNormal) {
    // The addition rounds to a multiple of the distance of subnormals.
    const float sum = std::bit_cast<float>(magnitude) + T::kApartAsSubnormals;
    return static_cast<uint8_t>(std::bit_cast<uint32_t>(sum) - kApart);
  }
  const uint32_t odd = magnitude >> kDropped & 1;
  return static_cast<uint8_t>((magnitude - kBias + (1 << (kDropped - 1)) - 1 + odd) >> kDropped);
}

}  // namespace internal

// Round to nearest, ties to even. Values beyond the largest finite one become NaN in e4m3 and infinity in e5m2, once
// they round to more than it. A NaN stays a NaN.
constexpr Float8E4M3 RoundToFloat8E4M3(float x) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(x) & 0x7FFFFFFF;
  // Above 464, the middle between 448 and the next step.
  const uint8_t rest = magnitude > 0x43E80000 ? 0x7F : internal::NearestFloat8<Float8E4M3>(magnitude);
  return {static_cast<uint8_t>(internal::SignOfFloat8(x) | rest)};
}
constexpr Float8E5M2 RoundToFloat8E5M2(float x) {
  const uint32_t magnitude = std::bit_cast<uint32_t>(x) & 0x7FFFFFFF;
  // From 61,440 on, the middle between 57,344 and the next step, rounding carries into the code of infinity.
  const uint8_t rest = magnitude > 0x7F800000    ? 0x7E
                       : magnitude >= 0x47700000 ? 0x7C
                                                 : internal::NearestFloat8<Float8E5M2>(magnitude);
  return {static_cast<uint8_t>(internal::SignOfFloat8(x) | rest)};
}

// Rounds to T, Float8E4M3 or Float8E5M2, like the functions above, but values beyond the largest finite one become
// that. Infinities do so too. A NaN becomes a NaN, whose bits may be other ones on a GPU.
template <class T>
constexpr T SaturateToFloat8(float x) {
  constexpr uint32_t kLargest = std::bit_cast<uint32_t>(T::kLargest);
  const uint32_t magnitude = std::bit_cast<uint32_t>(x) & 0x7FFFFFFF;
  const uint8_t rest =
      magnitude > 0x7F800000 ? 0x7F : internal::NearestFloat8<T>(magnitude < kLargest ? magnitude : kLargest);
  return {static_cast<uint8_t>(internal::SignOfFloat8(x) | rest)};
}
constexpr Float8E4M3 SaturateToFloat8E4M3(float x) { return SaturateToFloat8<Float8E4M3>(x); }
constexpr Float8E5M2 SaturateToFloat8E5M2(float x) { return SaturateToFloat8<Float8E5M2>(x); }

// Calls run(T()) with the type of a format.
template <class Run>
auto WithFloat8(DType dtype, const Run& run) {
  return dtype == DType::kFloat8E4M3 ? run(Float8E4M3()) : run(Float8E5M2());
}

// [Note: scales of fp8] A tensor in fp8 has one scale, or one for each of its parts ([Note: blockwise scales] in
// kernels/float8_scales.h). Its elements are the numbers of the tensor times `factor`, and a matmul multiplies its
// results by 1 / factor of each operand. The factor maps the largest magnitude of the tensor or part, `maximum`, to the
// largest value of the format:
//
//   factor = fp32(largest / max(fp64(maximum), 1e-12)),    scale = fp32(1 / factor)
//
// This is the tensorwise dynamic scaling of torchao (torchao/float8, amax_to_scale). If a tensor has an infinity, its
// factor is 0 and its scale infinite; with a NaN both are NaN. So results are not finite either, which a step notices.
constexpr float Float8Factor(DType dtype, float maximum) {
  constexpr double kLeast = 1e-12;
  const double above_zero = maximum < kLeast ? kLeast : maximum;  // A NaN is not below.
  return static_cast<float>(static_cast<double>(LargestFloat8(dtype)) / above_zero);
}

}  // namespace shale
