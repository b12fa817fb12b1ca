// Division and multiples of sizes. For host code, also in .cu files.
#pragma once

#include <cstdint>

namespace shale {

// ceil(n / unit). REQUIRES: n >= 0, unit > 0
constexpr int64_t CeilDivide(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

// The least multiple of `unit` that is at least n. REQUIRES: n >= 0, unit > 0
constexpr int64_t RoundUp(int64_t n, int64_t unit) { return CeilDivide(n, unit) * unit; }

// The largest multiple of `unit` that is at most n. REQUIRES: n >= 0, unit > 0
constexpr int64_t RoundDown(int64_t n, int64_t unit) { return n / unit * unit; }

}  // namespace shale
