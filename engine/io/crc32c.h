// Computes CRC-32C (Castagnoli; RFC 3720, appendix B.4), by ISA-L with the widest instructions that the machine has.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace shale {

// Returns the checksum of `bytes`. If `before` is the checksum of the preceding bytes, returns that of both together.
// Crc32c("123456789") is 0xE3069283.
uint32_t Crc32c(absl::string_view bytes, uint32_t before = 0);

// Returns a 64-bit checksum (CRC-64 of ECMA-182, reflected), for names of what is too large for a collision to be
// unlikely with 32 bits. Crc64("123456789") is 0x995DC9BBDF1939FA.
uint64_t Crc64(absl::string_view bytes, uint64_t before = 0);

// Returns the Crc64 of two strings together from that of each, and the number of bytes of the second.
uint64_t Crc64OfBoth(uint64_t first, uint64_t second, int64_t second_bytes);

}  // namespace shale
