// FillWithOrdinaryValues and FillWithOrdinaryFloat8s: realistic operands for benchmarks. A matmul of zeros draws less
// power than a matmul of a training step, and runs faster.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device/device.h"

namespace shale {

// Fills memory of `device` with pseudo-random numbers, the same in every call. Read as bf16 or as fp32, they have
// either sign and magnitudes from 2^-8 to 1. `to` is a multiple of 4. If `size_bytes` is odd, the last byte is not
// written. Waits for `stream`.
absl::Status FillWithOrdinaryValues(Device& device, Stream& stream, std::byte* to, int64_t size_bytes);

// Does the same with numbers for fp8: they have magnitudes from 2^-4 to 2 read as e4m3, and from 2^-9 to 2 as e5m2.
// Four of them read as fp32 are a finite number.
absl::Status FillWithOrdinaryFloat8s(Device& device, Stream& stream, std::byte* to, int64_t size_bytes);

}  // namespace shale
