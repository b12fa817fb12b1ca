// The 8-bit floating-point formats of GPUs since Hopper (Micikevicius et al., FP8 Formats for Deep Learning, 2022),
// converted exactly in software.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace shale {

enum class Float8 : uint8_t {
  kE4M3,  // 4 bits of exponent, 3 of mantissa. No infinity; only 0x7f and 0xff are NaN. The largest is 448.
  kE5M2,  // 5 bits of exponent, 2 of mantissa, as in IEEE 754. The largest is 57,344.
};

absl::string_view ToString(Float8 format);

// Returns the value of a code, which may be NaN or, in E5M2, infinite.
double ValueOf(Float8 format, uint8_t code);

// Returns the finite code whose value is nearest to `value`, of two equally near ones that with an even mantissa.
// Values beyond the largest, and infinities, become the largest. NaN becomes a NaN. A zero keeps its sign. Looks at
// every code, so that it is as plain as a definition.
uint8_t NearestFloat8(Float8 format, double value);

// Returns whether `code` is the nearest to the bf16 value with this code, or any NaN if the value is one.
bool IsExact(Float8 format, uint16_t bfloat16, uint8_t code);

}  // namespace shale
