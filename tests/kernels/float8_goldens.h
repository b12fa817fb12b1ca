// Made by tests/parity/make_float8_goldens.py with ml_dtypes 0.6.0. Digests are FNV-1a.
#pragma once

#include <cstdint>

namespace shale::testing {

struct Float8Golden {
  uint64_t values;     // Of all codes, as fp32.
  uint64_t rounded;    // Codes of all bf16 numbers.
  uint64_t saturated;  // The same, with the largest finite value in place of those beyond it.
  uint64_t middles;    // Codes of numbers in the middle of two neighbors, and right beside it.
};
inline constexpr Float8Golden kE4M3Golden = {0xdad1d9c50f749ca5, 0xe990f48673483715, 0xd8b2feb674a31125,
                                             0x3cc9a422ac4e50d9};
inline constexpr Float8Golden kE5M2Golden = {0x6c1e56b6fb09c905, 0xa701dd201af279e5, 0x22c10a2b6f34bb85,
                                             0x13acf6f470ca23cb};

}  // namespace shale::testing
