// The 8-bit floating-point formats of OCP's "8-bit Floating Point Specification" (2023), and conversions to and from
// fp32. They are storage types only, like BFloat16.
//
//   Float8E4M3   4 bits of exponent (bias 7), 3 of fraction: up to 448, 2^-9 apart near zero. It has no infinity, and two
//                NaNs: 0x7F and 0xFF.
//   Float8E5M2   5 bits of exponent (bias 15), 2 of fraction: up to 57,344, 2^-16 apart near zero. Infinities and NaNs as
//                in IEEE 754.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/dtype.h"

namespace shale {

struct Float8E4M3 {
  uint8_t bits = 0;
};

struct Float8E5M2 {
  uint8_t bits = 0;
};

// The largest finite value of a format.
constexpr float kLargestFloat8E4M3 = 448;
constexpr float kLargestFloat8E5M2 = 57344;
constexpr float LargestFloat8(DType dtype) {
  return dtype == DType::kFloat8E4M3 ? kLargestFloat8E4M3 : kLargestFloat8E5M2;
}

// Exact.
inline float ToFloat(Float8E4M3 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x80) << 24;
  const uint32_t exponent = x.bits >> 3 & 0xF, fraction = x.bits & 7;
  if ((x.bits & 0x7F) == 0x7F) return std::bit_cast<float>(sign | 0x7FC00000);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 120) << 23 | fraction << 20);
  const float magnitude = static_cast<float>(fraction) * 0x1p-9f;  // Zero or subnormal.
  return sign != 0 ? -magnitude : magnitude;
}

// A float8 e5m2 is the upper half of an IEEE half. Exact.
inline float ToFloat(Float8E5M2 x) { return ToFloat(Float16{static_cast<uint16_t>(x.bits << 8)}); }

// Round to nearest, ties to even. Values beyond the largest finite one become NaN in e4m3 and infinity in e5m2, once
// they round to more than it. A NaN stays a NaN.
inline Float8E4M3 RoundToFloat8E4M3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7FFFFFFF;
  const uint8_t sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  const auto float8 = [sign](uint32_t rest) { return Float8E4M3{static_cast<uint8_t>(sign | rest)}; };
  if (magnitude > 0x43E80000) return float8(0x7F);  // Above 464, the middle between 448 and the next step.
  // Subnormals are 2^-9 apart. So are floats from 2^14 to 2^15, so adding 2^14 rounds to a multiple of 2^-9.
  if (magnitude < 0x3C800000) {
    return float8(std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p14f) - 0x46800000);
  }
  const uint32_t normal = magnitude - (uint32_t{120} << 23);  // Changes bias 127 to 7.
  return float8((normal + 0x7FFFF + (normal >> 20 & 1)) >> 20);
}
inline Float8E5M2 RoundToFloat8E5M2(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7FFFFFFF;
  const uint8_t sign = static_cast<uint8_t>(bits >> 24 & 0x80);
  const auto float8 = [sign](uint32_t rest) { return Float8E5M2{static_cast<uint8_t>(sign | rest)}; };
  if (magnitude > 0x7F800000) return float8(0x7E);
  if (magnitude >= 0x47700000) return float8(0x7C);  // From 61,440 on, the middle between 57,344 and the next step.
  // Subnormals are 2^-16 apart. So are floats from 2^7 to 2^8.
  if (magnitude < 0x38800000) {
    return float8(std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0x1p7f) - 0x43000000);
  }
  const uint32_t normal = magnitude - (uint32_t{112} << 23);  // Changes bias 127 to 15.
  return float8((normal + 0xFFFFF + (normal >> 21 & 1)) >> 21);
}

// Round like the functions above, but values beyond the largest finite one become that. Infinities do so too.
inline Float8E4M3 SaturateToFloat8E4M3(float x) {
  return RoundToFloat8E4M3(std::isnan(x) ? x : std::fmin(std::fmax(x, -kLargestFloat8E4M3), kLargestFloat8E4M3));
}
inline Float8E5M2 SaturateToFloat8E5M2(float x) {
  return RoundToFloat8E5M2(std::isnan(x) ? x : std::fmin(std::fmax(x, -kLargestFloat8E5M2), kLargestFloat8E5M2));
}

// [Note: scales of fp8] A tensor in fp8 has one scale. Its elements are the numbers of the tensor times `factor`, and a
// matmul multiplies its result by 1 / factor of each operand. The factor maps the largest magnitude of the tensor,
// `maximum`, to the largest value of the format:
//
//   factor = fp32(largest / max(fp64(maximum), 1e-12)),    scale = fp32(1 / factor)
//
// This is the tensorwise dynamic scaling of torchao (torchao/float8, amax_to_scale). If a tensor has an infinity, its
// factor is 0 and its scale infinite; with a NaN both are NaN. So results are not finite either, which a step notices.
inline float Float8Factor(DType dtype, float maximum) {
  const double above_zero = std::isnan(maximum) ? maximum : std::fmax(static_cast<double>(maximum), 1e-12);
  return static_cast<float>(static_cast<double>(LargestFloat8(dtype)) / above_zero);
}

}  // namespace shale
