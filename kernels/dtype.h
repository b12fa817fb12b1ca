// Element types and the bfloat16 conversions that every backend shares.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "kernels/check.h"

namespace shale {

enum class DType : uint8_t { kFloat32, kBFloat16, kFloat64, kInt16, kInt32, kInt64, kUInt8 };

// Returns the size of one element in bytes.
constexpr int64_t SizeOf(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
    case DType::kInt16: return 2;
    case DType::kFloat32:
    case DType::kInt32: return 4;
    case DType::kFloat64:
    case DType::kInt64: return 8;
    case DType::kUInt8: return 1;
  }
  return 0;
}

constexpr absl::string_view ToString(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return "f32";
    case DType::kBFloat16: return "bf16";
    case DType::kFloat64: return "f64";
    case DType::kInt16: return "i16";
    case DType::kInt32: return "i32";
    case DType::kInt64: return "i64";
    case DType::kUInt8: return "u8";
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
