// Element types and the conversions to and from 16 bits that every backend shares.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "kernels/check.h"

namespace shale {

enum class DType : uint8_t {
  kFloat32,
  kBFloat16,
  kFloat64,
  kInt16,
  kInt32,
  kInt64,
  kUInt8,
  kFloat16,
  kFloat8E4M3,
  kFloat8E5M2
};

// Returns the size of one element in bytes.
constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
    case DType::kFloat16:
    case DType::kInt16: return 2;
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kFloat64:
    case DType::kInt64: return 8;
    case DType::kUInt8:
    case DType::kFloat8E4M3:
    case DType::kFloat8E5M2: return 1;
  }
  return 0;
}

constexpr absl::string_view ToString(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return "f32";
    case DType::kBFloat16: return "bf16";
    case DType::kFloat16: return "f16";
    case DType::kFloat64: return "f64";
    case DType::kInt16: return "i16";
    case DType::kInt32: return "i32";
    case DType::kInt64: return "i64";
    case DType::kUInt8: return "u8";
    case DType::kFloat8E4M3: return "f8e4m3";
    case DType::kFloat8E5M2: return "f8e5m2";
  }
  return "?";
}

// A bfloat16 is the upper half of an fp32. It is a storage type only: arithmetic is done in fp32.
struct BFloat16 {
  uint16_t bits = 0;
};

inline float ToFloat(BFloat16 x) { return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16); }
inline float ToFloat(float x) { return x; }

// Rounds to nearest, ties to even; a NaN stays a (quiet) NaN.
inline BFloat16 RoundToBFloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if (std::isnan(x)) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

// An IEEE half: 5 bits of exponent, 10 of fraction. It is a storage type only, like BFloat16.
struct Float16 {
  uint16_t bits = 0;
};

// Exact. A NaN becomes a quiet NaN with the same payload.
inline float ToFloat(Float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t exponent = x.bits >> 10 & 0x1F, fraction = x.bits & 0x3FF;
  if (exponent == 0x1F) {  // Infinity or NaN.
    return std::bit_cast<float>(sign | 0x7F800000 | fraction << 13 | (fraction != 0 ? 0x400000u : 0u));
  }
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
  const float magnitude = static_cast<float>(fraction) * 0x1p-24f;  // Zero or subnormal.
  return sign != 0 ? -magnitude : magnitude;
}

// Rounds to nearest, ties to even: to infinity from 65,520 on. A NaN stays a (quiet) NaN.
inline Float16 RoundToFloat16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), magnitude = bits & 0x7FFFFFFF;
  const uint32_t sign = bits >> 16 & 0x8000;
  const auto half = [sign](uint32_t rest) { return Float16{static_cast<uint16_t>(sign | rest)}; };
  if (magnitude > 0x7F800000) return half(0x7E00 | (bits >> 13 & 0x3FF));
  if (magnitude >= 0x477FF000) return half(0x7C00);
  // Subnormal halves are 2^-24 apart. So are floats from 1/2 to 1, so adding 1/2 rounds to a multiple of 2^-24.
  if (magnitude < 0x38800000) {
    return half(std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3F000000);
  }
  const uint32_t normal = magnitude - (uint32_t{112} << 23);  // Changes bias 127 to 15.
  return half((normal + 0xFFF + (normal >> 13 & 1)) >> 13);
}

// RoundTo<T> rounds to a storage type: float, BFloat16 or Float16, or a type derived from one of them.
template <class T>
inline T RoundTo(float x) {
  if constexpr (std::is_base_of_v<BFloat16, T>) {
    return T{RoundToBFloat16(x)};
  } else if constexpr (std::is_base_of_v<Float16, T>) {
    return T{RoundToFloat16(x)};
  } else {
    return x;
  }
}

// Returns whether activations and weights may have this dtype.
constexpr bool IsComputeDType(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kBFloat16 || dtype == DType::kFloat16;
}

// Returns whether a dtype is one of the 8-bit floating-point formats (kernels/float8.h).
constexpr bool IsFloat8(DType dtype) { return dtype == DType::kFloat8E4M3 || dtype == DType::kFloat8E5M2; }

// A master weight can be split into a bf16 weight and 16 low bits. The weight is the fp32 master rounded half away from
// zero; (weight, low) holds the master exactly, except for the payload of a NaN. fp32 masters are rounded to bf16 by
// the same rule, so that both kinds train alike.
inline BFloat16 RoundMaster(float master) {
  const uint32_t bits = std::bit_cast<uint32_t>(master);
  if (std::isnan(master)) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x8000u) >> 16)};
}
inline int16_t MasterLowBits(float master, BFloat16 weight) {
  if (std::isnan(master)) return 0;
  return static_cast<int16_t>(
      static_cast<uint16_t>(std::bit_cast<uint32_t>(master) - (static_cast<uint32_t>(weight.bits) << 16)));
}
inline float JoinMaster(BFloat16 weight, int16_t low) {
  return std::bit_cast<float>((static_cast<uint32_t>(weight.bits) << 16) +
                              static_cast<uint32_t>(static_cast<int32_t>(low)));
}

}  // namespace shale
