// CRC-32C (Castagnoli; RFC 3720, appendix B.4), as computed by ISA-L with the widest instructions of the machine.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace shale {

// Of `bytes`; or, given the checksum of what came before, of both together. Crc32c("123456789") is 0xE3069283.
uint32_t Crc32c(absl::string_view bytes, uint32_t before = 0);

}  // namespace shale
