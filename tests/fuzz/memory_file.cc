#include "tests/fuzz/memory_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"

namespace shale {

MemoryFile::MemoryFile(absl::string_view bytes) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
  SHALE_CHECK(fd_ >= 0);
  while (!bytes.empty()) {
    const ssize_t written = write(fd_, bytes.data(), bytes.size());
    SHALE_CHECK(written > 0);
    bytes.remove_prefix(written);
  }
  path_ = absl::StrCat("/proc/self/fd/", fd_);
}

MemoryFile::~MemoryFile() { close(fd_); }

}  // namespace shale
