#include "engine/files/io/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

// A lock on a folder orders the processes of this host, also while one of them removes the folder. On a network file
// system each host has such locks of its own. Its locks on files hold between hosts, so there is one on this file too.
constexpr const char* kFile = ".lock";

// Returns whether the lock on a folder must do alone: no file can be made in it, so that nobody can write there now
// whom a lock would stop, or the file system has no locks on files.
bool WithoutFile(int error) {
  return error == EACCES || error == EPERM || error == EROFS || error == ENOSPC || error == EDQUOT || error == ENOSYS ||
         error == EOPNOTSUPP || error == ENOLCK;
}

// Opens and locks kFile in a folder that this process has locked. Returns its descriptor, or -1 if there is no lock on
// it. Returns `held` if another host has it.
absl::StatusOr<int> LockFile(int folder, const std::string& path, const absl::Status& held) {
  while (true) {
    // Not through a link, behind which a file would be made elsewhere.
    const int file = openat(folder, kFile, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (file < 0 && WithoutFile(errno)) return -1;
    if (file < 0 && errno == ELOOP) {
      return absl::FailedPreconditionError(
          absl::StrCat(JoinPath(path, kFile), " is a link, where a lock makes a file; remove it"));
    }
    if (file < 0) return FileError(errno, "make lock", JoinPath(path, kFile));
    if (flock(file, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      close(file);
      if (error == EWOULDBLOCK) return held;
      if (WithoutFile(error)) return -1;
      return FileError(error, "lock", JoinPath(path, kFile));
    }
    // Another host may have removed the file after it was opened here and before it was locked.
    struct stat named, opened;
    if (fstat(file, &opened) == 0 && fstatat(folder, kFile, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
        named.st_ino == opened.st_ino) {
      return file;
    }
    close(file);
  }
}

}  // namespace

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
    const absl::Status held = absl::FailedPreconditionError(held_message);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) return held;
      return FileError(errno, "lock folder", path);
    }
    // A former holder may have removed the folder after it was opened here and before it was locked.
    if (fstat(fd, &opened) != 0) return FileError(errno, "examine", path);
    if (stat(path.c_str(), &named) == 0 && named.st_ino == opened.st_ino && named.st_dev == opened.st_dev) {
      SHALE_ASSIGN_OR_RETURN(lock.file_, LockFile(fd, path, held));
      lock.made_ = made;
      return lock;
    }
    made = true;
  }
}

bool FolderLock::IsLockFile(absl::string_view name) { return name == kFile; }

FolderLock::FolderLock(FolderLock&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      file_(std::exchange(other.file_, -1)),
      made_(other.made_) {}

FolderLock::~FolderLock() {
  if (fd_ < 0) return;
  if (file_ >= 0) unlinkat(fd_, kFile, 0);  // Also if the folder has been renamed.
  // rmdir fails, as it should, if the folder is not empty.
  if (made_) rmdir(path_.c_str());
  if (file_ >= 0) close(file_);
  close(fd_);
}

}  // namespace shale
