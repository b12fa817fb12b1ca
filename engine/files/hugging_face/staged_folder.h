// Creates a folder that appears complete or not at all.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/files/io/folder_lock.h"

namespace shale {

// Owns a hidden folder beside the target. The caller writes files to it, and Commit renames it to the target.
// Destruction without Commit removes the hidden folder. If the process is killed before that, the next StagedFolder of
// the same target removes it. Used by one thread at a time.
class StagedFolder {
 public:
  // Makes the missing parents of `target`, and the hidden folder. Returns FailedPrecondition if `target` exists and is
  // not an empty folder.
  static absl::StatusOr<StagedFolder> Create(const std::string& target);
  StagedFolder(StagedFolder&& other) noexcept;
  StagedFolder& operator=(StagedFolder&&) = delete;
  ~StagedFolder();

  // Returns the folder to write to. Valid until Commit. The folder may contain only files, and whoever writes a file
  // must flush it (DurableFile).
  const std::string& path() const { return path_; }
  // Flushes the folder, renames it to the target and flushes the parent. Returns FailedPrecondition if the target is no
  // longer absent or empty. If only the last flush fails, the error says that the target is complete.
  absl::Status Commit();

 private:
  StagedFolder() = default;

  std::string parent_;
  std::string target_;
  std::string path_;                // Empty once committed.
  std::optional<FolderLock> lock_;  // Lock on path_, which shows other processes that it is in use.
};

}  // namespace shale
