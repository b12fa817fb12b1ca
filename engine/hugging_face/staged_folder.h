// A folder that appears whole or not at all.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/io/folder_lock.h"

namespace shale {

// Files go to a hidden folder beside the target; Commit renames it. Destroyed without Commit, it removes what was made;
// what a killed process left is removed by the next for the same target. One thread at a time.
class StagedFolder {
 public:
  // Makes the folders above `target` that are missing. FailedPrecondition if there is something at `target` other than
  // an empty folder.
  static absl::StatusOr<StagedFolder> Create(const std::string& target);
  StagedFolder(StagedFolder&& other) noexcept;
  StagedFolder& operator=(StagedFolder&&) = delete;
  ~StagedFolder();

  // Where to write, while it is not committed. Files only, each flushed by who writes it (DurableFile).
  const std::string& path() const { return path_; }
  absl::Status Commit();

 private:
  StagedFolder() = default;

  std::string parent_;
  std::string target_;
  std::string path_;                // Empty once committed.
  std::optional<FolderLock> lock_;  // On it: it is in use.
};

}  // namespace shale
