#include "engine/io/file_system.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "engine/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr int64_t kMaxWriteBytes = int64_t{1} << 30;  // Linux moves at most 2^31 - 4096 bytes at once.

class PosixWritableFile : public WritableFile {
 public:
  PosixWritableFile(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  ~PosixWritableFile() override {
    if (fd_ >= 0) close(fd_);
  }

  void BypassCache() override { direct_ = SetDirect(true); }

  absl::Status WriteAt(int64_t offset, absl::string_view bytes) override {
    while (!bytes.empty()) {
      const size_t wanted = std::min<size_t>(bytes.size(), kMaxWriteBytes);
      if (direct_ && !Aligned(offset, bytes)) direct_ = !SetDirect(false);
      const ssize_t written = TEMP_FAILURE_RETRY(pwrite(fd_, bytes.data(), wanted, offset));
      if (written < 0 && errno == EINVAL && direct_) {
        // The file system accepts O_DIRECT, but refuses this write with it.
        direct_ = !SetDirect(false);
        continue;
      }
      if (written < 0) return FileError(errno, "write", path_);
      bytes.remove_prefix(written);
      offset += written;
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    return TEMP_FAILURE_RETRY(fsync(fd_)) != 0 ? FileError(errno, "flush", path_) : absl::OkStatus();
  }

  absl::Status Close() override {
    return close(std::exchange(fd_, -1)) != 0 && errno != EINTR ? FileError(errno, "close", path_) : absl::OkStatus();
  }

 private:
  static bool Aligned(int64_t offset, absl::string_view bytes) {
    return (reinterpret_cast<uintptr_t>(bytes.data()) | static_cast<uintptr_t>(offset) | bytes.size()) %
               kDirectAlignment ==
           0;
  }
  bool SetDirect(bool on) {
    const int flags = fcntl(fd_, F_GETFL);
    return flags >= 0 && fcntl(fd_, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
  }

  const std::string path_;
  int fd_;
  bool direct_ = false;
};

class Posix : public FileSystem {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    const int fd = TEMP_FAILURE_RETRY(open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd < 0) return FileError(errno, "write", path);
    return std::make_unique<PosixWritableFile>(path, fd);
  }
  absl::Status MakeFolder(const std::string& path) override {
    return mkdir(path.c_str(), 0777) != 0 ? FileError(errno, "make folder", path) : absl::OkStatus();
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return rename(from.c_str(), to.c_str()) != 0 ? FileError(errno, "replace", to) : absl::OkStatus();
  }
  absl::Status RemoveFile(const std::string& path) override {
    return unlink(path.c_str()) != 0 ? FileError(errno, "remove", path) : absl::OkStatus();
  }
  absl::Status RemoveFolder(const std::string& path) override {
    return rmdir(path.c_str()) != 0 ? FileError(errno, "remove folder", path) : absl::OkStatus();
  }
  absl::Status SyncFolder(const std::string& path) override {
    const int fd = TEMP_FAILURE_RETRY(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd < 0) return FileError(errno, "open folder", path);
    // EINVAL means that the file system has nothing to flush for folders.
    const bool failed = TEMP_FAILURE_RETRY(fsync(fd)) != 0 && errno != EINVAL;
    const int error_number = errno;
    close(fd);
    return failed ? FileError(error_number, "flush folder", path) : absl::OkStatus();
  }
};

}  // namespace

FileSystem& PosixFileSystem() {
  static Posix& posix = *new Posix;
  return posix;
}

absl::Status RemoveFolderAndFiles(const std::string& path, FileSystem& files) {
  if (IsLink(path)) return files.RemoveFile(path);
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(path));
  for (const std::string& name : names) SHALE_RETURN_IF_ERROR(files.RemoveFile(JoinPath(path, name)));
  return files.RemoveFolder(path);
}

}  // namespace shale
