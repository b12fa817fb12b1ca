#include "engine/checkpoint/saved_file.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/io/crc32c.h"
#include "kernels/check.h"

namespace shale {

bool IsDamage(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status) || absl::IsNotFound(status);
}

absl::StatusOr<InputFile> OpenSavedFile(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return FileError(errno, "examine", path);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  return InputFile::Open(path);
}

absl::Status CheckSavedSize(const InputFile& file, const SavedFile& saved) {
  if (file.size() == saved.size_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(file.path(), " has ", file.size(), " bytes; the manifest says ", saved.size_bytes));
}

absl::StatusOr<absl::string_view> ReadSavedChunk(const InputFile& file, const SavedFile& saved, int64_t chunk,
                                                 absl::Span<char> out) {
  const int64_t begin = chunk * kCheckpointChunkBytes;
  const int64_t size = std::min(kCheckpointChunkBytes, saved.size_bytes - begin);
  SHALE_CHECK(chunk >= 0 && size > 0 && std::ssize(out) >= size);
  SHALE_RETURN_IF_ERROR(file.ReadAt(begin, out.data(), size));
  const absl::string_view bytes(out.data(), size);
  if (const uint32_t crc = Crc32c(bytes); crc != saved.chunk_crcs[chunk]) {
    return absl::DataLossError(
        absl::StrFormat("%s is damaged between bytes %d and %d: their checksum is %08x, the manifest says %08x",
                        file.path(), begin, begin + size, crc, saved.chunk_crcs[chunk]));
  }
  return bytes;
}

}  // namespace shale
