// Functions that divide and round sizes, for host code, including the host code of .cu files.
#pragma once

#include <cstdint>

namespace shale {

// Returns ceil(n / unit). REQUIRES: n >= 0, unit > 0
constexpr int64_t CeilDivide(int64_t n, int64_t unit) { return (n + unit - 1) / unit; }

// Returns the smallest multiple of `unit` that is at least n. REQUIRES: n >= 0, unit > 0
constexpr int64_t RoundUp(int64_t n, int64_t unit) { return CeilDivide(n, unit) * unit; }

// Returns the largest multiple of `unit` that is at most n. REQUIRES: n >= 0, unit > 0
constexpr int64_t RoundDown(int64_t n, int64_t unit) { return n / unit * unit; }

}  // namespace shale
