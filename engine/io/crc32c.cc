#include "engine/io/crc32c.h"

#include <isa-l/crc.h>
#include <isa-l/crc64.h>

#include <algorithm>
#include <array>

namespace shale {
namespace {

// A linear map of checksums: the image of each of their 64 bits.
using Crc64Map = std::array<uint64_t, 64>;

uint64_t Apply(const Crc64Map& map, uint64_t crc) {
  uint64_t image = 0;
  for (; crc != 0; crc &= crc - 1) image ^= map[__builtin_ctzll(crc)];
  return image;
}

Crc64Map Squared(const Crc64Map& map) {
  Crc64Map squared;
  for (int bit = 0; bit < 64; ++bit) squared[bit] = Apply(map, map[bit]);
  return squared;
}

}  // namespace

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

// A checksum is linear: a zero byte after a string maps its checksum, and 2^k zero bytes do so by the k-th square of
// that map. This is how crc32_combine of zlib works.
uint64_t Crc64OfBoth(uint64_t first, uint64_t second, int64_t second_bytes) {
  constexpr uint64_t kPolynomial = 0xC96C5795D7870F42;  // ECMA-182, reflected.
  Crc64Map map;
  map[0] = kPolynomial;  // One zero bit.
  for (int bit = 1; bit < 64; ++bit) map[bit] = uint64_t{1} << (bit - 1);
  for (int i = 0; i < 3; ++i) map = Squared(map);  // Eight of them.
  for (uint64_t bytes = second_bytes; bytes != 0; bytes >>= 1) {
    if ((bytes & 1) != 0) first = Apply(map, first);
    map = Squared(map);
  }
  return first ^ second;
}

}  // namespace shale
