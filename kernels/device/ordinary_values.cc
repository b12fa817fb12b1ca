#include "kernels/device/ordinary_values.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "kernels/check.h"
#include "kernels/integers.h"

namespace shale {
namespace {

constexpr int64_t kBlockBytes = int64_t{1} << 20;

// Returns a bf16 with random sign and mantissa, and one of the eight exponents below that of 1.
uint16_t BFloat16Of(uint32_t random) {
  return static_cast<uint16_t>((random & 0x807f) | ((119 + (random >> 7 & 7)) << 7));
}

// Returns two codes of fp8 with random sign and one of the 40 smallest magnitudes from code 0x18 on.
uint16_t Float8sOf(uint32_t random) {
  const auto code = [](uint32_t byte) { return (byte & 0x80) | (0x18 + (byte & 0x7f) % 40); };
  return static_cast<uint16_t>(code(random) | code(random >> 8) << 8);
}

absl::Status Fill(Device& device, Stream& stream, std::byte* to, int64_t size_bytes, uint16_t (*make)(uint32_t)) {
  const int64_t block_bytes = std::min(kBlockBytes, RoundDown(size_bytes, 2));
  if (block_bytes == 0) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Arena> block, device.AllocatePinned(block_bytes));
  uint32_t state = 1;
  for (int64_t i = 0; i < block_bytes; i += 2) {
    state = state * 1664525 + 1013904223;  // D. Knuth, The Art of Computer Programming, volume 2, 3.3.4, line 16.
    const uint16_t bits = make(state >> 16);
    std::memcpy(block->base() + i, &bits, sizeof(bits));
  }
  absl::Status status;
  for (int64_t at = 0; at + 1 < size_bytes && status.ok(); at += block_bytes) {
    status = stream.Copy(to + at, block->base(), std::min(block_bytes, RoundDown(size_bytes, 2) - at));
  }
  status.Update(stream.Synchronize());  // After an error too: enqueued copies read the block.
  return status;
}

}  // namespace

absl::Status FillWithOrdinaryValues(Device& device, Stream& stream, std::byte* to, int64_t size_bytes) {
  return Fill(device, stream, to, size_bytes, BFloat16Of);
}

absl::Status FillWithOrdinaryFloat8s(Device& device, Stream& stream, std::byte* to, int64_t size_bytes) {
  return Fill(device, stream, to, size_bytes, Float8sOf);
}

}  // namespace shale
