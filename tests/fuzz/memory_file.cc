#include "tests/fuzz/memory_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "kernels/check.h"

namespace shale {
namespace {

void WriteAll(int fd, absl::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), bytes.size());
    SHALE_CHECK(written > 0);
    bytes.remove_prefix(written);
  }
}

}  // namespace

MemoryFile::MemoryFile(absl::string_view bytes) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
  SHALE_CHECK(fd_ >= 0);
  WriteAll(fd_, bytes);
  path_ = absl::StrCat("/proc/self/fd/", fd_);
}

MemoryFile::~MemoryFile() { close(fd_); }

MemoryFolder::MemoryFolder() {
  const char* const elsewhere = std::getenv("TMPDIR");
  path_ = absl::StrCat(access("/dev/shm", W_OK) == 0 ? "/dev/shm"
                       : elsewhere != nullptr        ? elsewhere
                                                     : "/tmp",
                       "/shale_fuzz_XXXXXX");
  SHALE_CHECK(mkdtemp(path_.data()) != nullptr) << path_;
}

MemoryFolder::~MemoryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void MemoryFolder::Write(absl::string_view name, absl::string_view bytes) const {
  const std::string path = Path(name);
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  SHALE_CHECK(fd >= 0) << path;
  WriteAll(fd, bytes);
  close(fd);
}

}  // namespace shale
