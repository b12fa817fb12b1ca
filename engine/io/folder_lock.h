// A folder that one process has for itself.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace shale {

// Holds an advisory lock on a folder (flock), which ends with the object or the process, however that ends.
class FolderLock {
 public:
  // Makes the folder if it is missing. FailedPrecondition with `held_message` when another holder has it.
  static absl::StatusOr<FolderLock> Take(const std::string& path, const std::string& held_message);
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&&) = delete;
  // Removes the folder, still locked, if Take made it and nothing is in it.
  ~FolderLock();

 private:
  FolderLock(std::string path, int fd, bool made) : path_(std::move(path)), fd_(fd), made_(made) {}

  std::string path_;
  int fd_;  // -1: moved away.
  bool made_;
};

}  // namespace shale
