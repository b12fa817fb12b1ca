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

// Sets the contents of a file.
void Overwrite(int fd, absl::string_view bytes) {
  SHALE_CHECK(pwrite(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()));
  SHALE_CHECK(ftruncate(fd, static_cast<off_t>(bytes.size())) == 0);
}

}  // namespace

MemoryFile::MemoryFile(absl::string_view bytes) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
  SHALE_CHECK(fd_ >= 0);
  Overwrite(fd_, bytes);
  path_ = absl::StrCat("/proc/self/fd/", fd_);
}

void MemoryFile::Write(absl::string_view bytes) const { Overwrite(fd_, bytes); }

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
  for (const auto& file : open_) close(file.second);
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void MemoryFolder::Write(absl::string_view name, absl::string_view bytes) const {
  const auto [file, is_new] = open_.try_emplace(std::string(name), -1);
  if (is_new) file->second = open(Path(name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  SHALE_CHECK(file->second >= 0) << Path(name);
  Overwrite(file->second, bytes);
}

}  // namespace shale
