#include "tools/output_file.h"

#include <cerrno>
#include <cstdio>

#include "engine/files/io/file.h"

namespace shale {

absl::Status WriteOutput(const std::string& path, absl::string_view contents) {
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return FileError(errno, "write", path);
  const bool written = std::fwrite(contents.data(), 1, contents.size(), file) == contents.size();
  const int write_error = errno;
  const bool closed = std::fclose(file) == 0;  // fclose writes what is still buffered.
  if (written && closed) return absl::OkStatus();
  return FileError(written ? errno : write_error, "write", path);
}

}  // namespace shale
