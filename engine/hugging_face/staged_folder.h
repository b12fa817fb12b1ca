// Creates a folder that appears complete or not at all.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/io/folder_lock.h"

namespace shale {

// Files go to a hidden folder beside the target, which Commit renames to the target. Destruction without Commit removes
// the hidden folder. If the process is killed first, the next StagedFolder of the same target removes it. Used by one
// thread at a time.
class StagedFolder {
 public:
  // Makes the missing parents of `target`, and the hidden folder. Returns FailedPrecondition if there is something at
  // `target` other than an empty folder.
  static absl::StatusOr<StagedFolder> Create(const std::string& target);
  StagedFolder(StagedFolder&& other) noexcept;
  StagedFolder& operator=(StagedFolder&&) = delete;
  ~StagedFolder();

  // The folder to write to, until Commit. May contain only files; whoever writes one flushes it (DurableFile).
  const std::string& path() const { return path_; }
  // Flushes the folder, renames it to the target and flushes the parent. Returns FailedPrecondition if the target is no
  // longer absent or empty. If only the last flush fails, the error says that the target is complete.
  absl::Status Commit();

 private:
  StagedFolder() = default;

  std::string parent_;
  std::string target_;
  std::string path_;                // Empty once committed.
  std::optional<FolderLock> lock_;  // Lock on path_, which shows others that it is in use.
};

}  // namespace shale
