#include "engine/io/crc32c.h"

#include <isa-l/crc.h>
#include <isa-l/crc64.h>

#include <algorithm>

namespace shale {

uint32_t Crc32c(absl::string_view bytes, uint32_t before) {
  constexpr size_t kMaxBytes = 1 << 30;  // ISA-L takes the length as int.
  uint32_t crc = ~before;
  while (!bytes.empty()) {
    const absl::string_view part = bytes.substr(0, kMaxBytes);
    // ISA-L takes a pointer to non-const bytes, but does not write them.
    crc = crc32_iscsi(reinterpret_cast<unsigned char*>(const_cast<char*>(part.data())), static_cast<int>(part.size()),
                      crc);
    bytes.remove_prefix(part.size());
  }
  return ~crc;
}

uint64_t Crc64(absl::string_view bytes, uint64_t before) {
  return crc64_ecma_refl(before, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

}  // namespace shale
