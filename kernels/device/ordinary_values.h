// Values for measuring: products of zeros draw less power than those of a training step, and run faster.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/device/device.h"

namespace shale {

// Fills memory of `device` with pseudo-random numbers of ordinary size, the same in every call: bf16, and in pairs
// fp32, of either sign and magnitudes from 2^-8 to 1. `to` is a multiple of 4; of memory that is no multiple of 2 bytes
// the last one is left out. Waits on `stream`.
absl::Status FillWithOrdinaryValues(Device& device, Stream& stream, std::byte* to, int64_t size_bytes);

}  // namespace shale
