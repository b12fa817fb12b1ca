#include "tools/bench/float8.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/base/casts.h"

namespace shale {

absl::string_view ToString(Float8 format) { return format == Float8::kE4M3 ? "e4m3" : "e5m2"; }

double ValueOf(Float8 format, uint8_t code) {
  const int mantissa_bits = format == Float8::kE4M3 ? 3 : 2, bias = format == Float8::kE4M3 ? 7 : 15;
  const int mantissa = code & ((1 << mantissa_bits) - 1), exponent = (code & 0x7f) >> mantissa_bits;
  const double sign = (code & 0x80) != 0 ? -1 : 1;
  if (format == Float8::kE4M3 && (code & 0x7f) == 0x7f) return std::numeric_limits<double>::quiet_NaN();
  if (format == Float8::kE5M2 && exponent == 31) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity() : std::numeric_limits<double>::quiet_NaN();
  }
  const int significand = exponent == 0 ? mantissa : mantissa + (1 << mantissa_bits);
  return sign * std::ldexp(significand, (exponent == 0 ? 1 : exponent) - bias - mantissa_bits);
}

uint8_t NearestFloat8(Float8 format, double value) {
  constexpr uint8_t kNan = 0x7f;
  if (std::isnan(value)) return kNan;
  // Beyond the largest, differences would not be exact.
  const double magnitude = std::min(std::fabs(value), ValueOf(format, format == Float8::kE4M3 ? 0x7e : 0x7b));
  uint8_t nearest = 0;
  double least = std::numeric_limits<double>::infinity();
  for (uint8_t code = 0; std::isfinite(ValueOf(format, code)); ++code) {
    const double distance = std::fabs(ValueOf(format, code) - magnitude);
    // Codes ascend with their values, so that the last bit of a code is that of its mantissa.
    if (distance < least || (distance == least && code % 2 == 0)) {
      least = distance;
      nearest = code;
    }
  }
  return nearest | (std::signbit(value) ? 0x80 : 0);
}

bool IsExact(Float8 format, uint16_t bfloat16, uint8_t code) {
  const float value = absl::bit_cast<float>(uint32_t{bfloat16} << 16);
  return std::isnan(value) ? std::isnan(ValueOf(format, code)) : code == NearestFloat8(format, value);
}

}  // namespace shale
