#include "engine/io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "engine/io/file.h"
#include "kernels/check.h"

namespace shale {

absl::StatusOr<FolderLock> FolderLock::Take(const std::string& path, const std::string& held_message) {
  struct stat named, opened;
  bool made = stat(path.c_str(), &named) != 0;
  while (true) {
    SHALE_RETURN_IF_ERROR(MakeFolders(path));
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
      if (errno == ENOENT) continue;
      return FileError(errno, "open folder", path);
    }
    // made_ stays false until the lock is taken, so that destruction does not remove the folder before.
    FolderLock lock(path, fd, /*made=*/false);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return absl::FailedPreconditionError(held_message);
      return FileError(errno, "lock folder", path);
    }
    // A former holder may have removed the folder after it was opened here and before it was locked.
    if (fstat(fd, &opened) != 0) return FileError(errno, "examine", path);
    if (stat(path.c_str(), &named) == 0 && named.st_ino == opened.st_ino && named.st_dev == opened.st_dev) {
      lock.made_ = made;
      return lock;
    }
    made = true;
  }
}

FolderLock::FolderLock(FolderLock&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), made_(other.made_) {}

FolderLock::~FolderLock() {
  if (fd_ < 0) return;
  // rmdir fails, as it should, if the folder is not empty.
  if (made_) rmdir(path_.c_str());
  close(fd_);
}

}  // namespace shale
