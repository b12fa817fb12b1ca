#include "engine/io/file_content.h"

#include <algorithm>
#include <mutex>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/io/crc32c.h"
#include "kernels/check.h"

namespace shale {

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
