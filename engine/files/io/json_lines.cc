#include "engine/files/io/json_lines.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "engine/files/io/file.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"

namespace shale {
namespace {

// Returns the offset after the last line end in the first `size` bytes of the file, or 0 if there is none.
absl::StatusOr<int64_t> EndOfLastLine(const std::string& path, int64_t size) {
  SHALE_ASSIGN_OR_RETURN(const InputFile file, InputFile::Open(path));
  char buffer[4096];
  while (size > 0) {
    const int64_t count = std::min<int64_t>(size, sizeof(buffer));
    SHALE_RETURN_IF_ERROR(file.ReadAt(size - count, buffer, count));
    const size_t end = absl::string_view(buffer, count).rfind('\n');
    if (end != absl::string_view::npos) return size - count + static_cast<int64_t>(end) + 1;
    size -= count;
  }
  return 0;
}

}  // namespace

JsonObject& JsonObject::AddRaw(absl::string_view name, absl::string_view json) {
  absl::StrAppend(&members_, members_.empty() ? "" : ", ", JsonQuote(name), ": ", json);
  return *this;
}

JsonObject& JsonObject::Add(absl::string_view name, absl::string_view value) { return AddRaw(name, JsonQuote(value)); }

JsonObject& JsonObject::Add(absl::string_view name, int64_t value) { return AddRaw(name, absl::StrCat(value)); }

JsonObject& JsonObject::Add(absl::string_view name, bool value) { return AddRaw(name, value ? "true" : "false"); }

JsonObject& JsonObject::Add(absl::string_view name, double value) {
  if (!std::isfinite(value)) return AddRaw(name, "null");
  char text[32];
  const std::to_chars_result result = std::to_chars(text, text + sizeof(text), value);
  return AddRaw(name, absl::string_view(text, result.ptr - text));
}

std::string JsonObject::ToString() const { return absl::StrCat("{", members_, "}"); }

absl::StatusOr<std::unique_ptr<JsonLinesWriter>> JsonLinesWriter::Open(const std::string& path, Mode mode) {
  const int truncate = mode == Mode::kReplace ? O_TRUNC : 0;
  const int fd = TEMP_FAILURE_RETRY(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | truncate, 0666));
  if (fd < 0) return FileError(errno, "write", path);
  auto writer = absl::WrapUnique(new JsonLinesWriter(path, fd));
  struct stat info;
  if (fstat(fd, &info) != 0) return FileError(errno, "examine", path);
  if (info.st_size > 0) {
    SHALE_ASSIGN_OR_RETURN(writer->size_, EndOfLastLine(path, info.st_size));
    if (ftruncate(fd, writer->size_) != 0) return FileError(errno, "shorten", path);
  }
  return writer;
}

JsonLinesWriter::~JsonLinesWriter() { close(fd_); }

absl::Status JsonLinesWriter::Append(const JsonObject& object) {
  const std::string line = object.ToString() + "\n";
  for (size_t done = 0; done < line.size();) {
    const ssize_t written = TEMP_FAILURE_RETRY(pwrite(fd_, line.data() + done, line.size() - done, size_ + done));
    if (written < 0) {
      absl::Status status = FileError(errno, "write", path_);
      if (done > 0 && ftruncate(fd_, size_) != 0) {
        status =
            absl::Status(status.code(), absl::StrCat(status.message(), "; an incomplete line remains in the file"));
      }
      return status;
    }
    done += written;
  }
  size_ += line.size();
  return absl::OkStatus();
}

}  // namespace shale
