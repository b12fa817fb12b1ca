// Locks a folder for one process.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// Holds an advisory lock on a folder (flock), and on the file ".lock" in it, which it makes and removes: that holds
// also between hosts that share the folder, if they may write there and the file system has such locks. The lock ends
// with the object, or with the process, even if that crashes; then the file stays, and does no harm.
class FolderLock {
 public:
  // Makes the folder and its parents if they are missing, and locks the folder. Returns FailedPrecondition with
  // `held_message` if the folder is locked already.
  static absl::StatusOr<FolderLock> Take(const std::string& path, const std::string& held_message);
  // Returns whether a name in a folder is that of the file which a lock makes.
  static bool IsLockFile(absl::string_view name);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;
  // Removes the file, and then the folder, while it is still locked, if Take made it and it is empty.
  ~FolderLock();

 private:
  FolderLock(std::string path, int fd, bool made) : path_(std::move(path)), fd_(fd), made_(made) {}

  std::string path_;
  int fd_;         // Of the folder. -1 after a move from this object.
  int file_ = -1;  // Of the file in it. -1 if there is no lock on it.
  bool made_;
};

}  // namespace shale
