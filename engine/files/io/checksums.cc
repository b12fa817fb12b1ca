#include "engine/files/io/checksums.h"

#include <isa-l/crc.h>
#include <isa-l/crc64.h>

#include <algorithm>
#include <array>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

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

struct FileContent::Known {
  const InputFile::Identity identity;
  const int64_t begin, bytes;
  const uint64_t crc64;
  std::mutex mutex;
  InputFile::Identity last;  // The last other state that had the same bytes.
};

FileContent::FileContent(const InputFile::Identity& identity, int64_t begin, int64_t bytes, uint64_t crc64)
    : known_(new Known{.identity = identity, .begin = begin, .bytes = bytes, .crc64 = crc64, .last = identity}) {}

uint64_t FileContent::crc64() const { return known_->crc64; }

absl::Status FileContent::Check(const InputFile& file) const {
  SHALE_ASSIGN_OR_RETURN(const InputFile::Identity now, file.PresentIdentity());
  if (now == known_->identity) return absl::OkStatus();
  const std::lock_guard lock(known_->mutex);
  if (now == known_->last) return absl::OkStatus();
  if (now.size == known_->identity.size) {
    SHALE_ASSIGN_OR_RETURN(const uint64_t crc64, Crc64OfFile(file, known_->begin, known_->bytes));
    if (crc64 == known_->crc64) {
      known_->last = now;
      return absl::OkStatus();
    }
  }
  return absl::DataLossError(
      absl::StrCat(file.path(), " changed after it was checked; it must not change while it is in use"));
}

absl::StatusOr<uint64_t> Crc64OfFile(const InputFile& file, int64_t begin, int64_t bytes) {
  constexpr int64_t kAtOnce = int64_t{1} << 18;
  std::string buffer(std::min(kAtOnce, bytes), '\0');
  uint64_t crc64 = 0;
  for (int64_t at = 0; at < bytes; at += std::ssize(buffer)) {
    buffer.resize(std::min(kAtOnce, bytes - at));
    SHALE_RETURN_IF_ERROR(file.ReadAt(begin + at, buffer.data(), std::ssize(buffer)));
    crc64 = Crc64(buffer, crc64);
  }
  return crc64;
}

}  // namespace shale
