// Locks a folder for one process.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace shale {

// Holds an advisory lock on a folder (flock). The lock ends with the object, or with the process, even if that crashes.
class FolderLock {
 public:
  // Makes the folder and its parents if they are missing, and locks the folder. Returns FailedPrecondition with
  // `held_message` if the folder is locked already.
  static absl::StatusOr<FolderLock> Take(const std::string& path, const std::string& held_message);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;
  // Removes the folder, while it is still locked, if Take made it and it is empty.
  ~FolderLock();

 private:
  FolderLock(std::string path, int fd, bool made) : path_(std::move(path)), fd_(fd), made_(made) {}

  std::string path_;
  int fd_;  // -1 after a move from this object.
  bool made_;
};

}  // namespace shale
