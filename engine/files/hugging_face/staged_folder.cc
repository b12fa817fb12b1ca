#include "engine/files/hugging_face/staged_folder.h"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

namespace fs = std::filesystem;

absl::Status CheckAbsentOrEmpty(const std::string& target) {
  std::error_code error;
  const fs::file_status status = fs::symlink_status(target, error);
  if (status.type() == fs::file_type::not_found) return absl::OkStatus();
  if (error) return FileError(error.value(), "examine", target);
  if (status.type() != fs::file_type::directory) {
    return absl::FailedPreconditionError(absl::StrCat(target, " exists and is not a folder; give another name"));
  }
  const bool empty = fs::is_empty(target, error);
  if (error) return FileError(error.value(), "examine", target);
  if (empty) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(target, " is not empty; give a folder that is empty or does not exist"));
}

// Removes the folders in `parent` whose names begin with `prefix` and that no process has locked.
absl::Status RemoveAbandoned(const std::string& parent, const std::string& prefix) {
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(parent));
  for (const std::string& name : names) {
    const std::string path = JoinPath(parent, name);
    std::error_code error;
    if (!absl::StartsWith(name, prefix) || fs::symlink_status(path, error).type() != fs::file_type::directory) continue;
    const absl::StatusOr<FolderLock> lock = FolderLock::Take(path, "in use");
    // Ignores an error, because a folder that stays does no harm.
    if (lock.ok()) RemoveFolderAndFiles(path).IgnoreError();
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<StagedFolder> StagedFolder::Create(const std::string& target) {
  static std::atomic<int64_t> counter = 0;
  std::error_code error;
  fs::path whole = fs::absolute(target, error).lexically_normal();
  if (error || target.empty()) return FileError(error ? error.value() : ENOENT, "make folder", target);
  if (!whole.has_filename()) whole = whole.parent_path();  // "a/b/" is a/b.
  StagedFolder folder;
  folder.target_ = whole.string();
  folder.parent_ = whole.parent_path().string();
  SHALE_RETURN_IF_ERROR(MakeFolders(folder.parent_));
  SHALE_RETURN_IF_ERROR(CheckAbsentOrEmpty(folder.target_));
  const std::string prefix = absl::StrCat(".", whole.filename().string(), ".tmp-");
  SHALE_RETURN_IF_ERROR(RemoveAbandoned(folder.parent_, prefix));
  absl::Status made;
  do {  // Tries again because a crashed process with the same process id may have left a folder of that name.
    const std::string path = JoinPath(folder.parent_, absl::StrCat(prefix, getpid(), "-", counter.fetch_add(1)));
    made = PosixFileSystem().MakeFolder(path);
    if (made.ok()) folder.path_ = path;
  } while (absl::IsAlreadyExists(made));
  SHALE_RETURN_IF_ERROR(made);
  SHALE_ASSIGN_OR_RETURN(FolderLock lock, FolderLock::Take(folder.path_, absl::StrCat(folder.path_, " is in use")));
  folder.lock_.emplace(std::move(lock));
  return folder;
}

StagedFolder::StagedFolder(StagedFolder&& other) noexcept
    : parent_(std::move(other.parent_)),
      target_(std::move(other.target_)),
      path_(std::exchange(other.path_, "")),
      lock_(std::move(other.lock_)) {}

StagedFolder::~StagedFolder() {
  // Ignores a failure to remove the folder: if an error led here, the caller already returns that error.
  if (!path_.empty()) RemoveFolderAndFiles(path_).IgnoreError();
}

absl::Status StagedFolder::Commit() {
  SHALE_RETURN_IF_ERROR(PosixFileSystem().SyncFolder(path_));
  SHALE_RETURN_IF_ERROR(CheckAbsentOrEmpty(target_));
  SHALE_RETURN_IF_ERROR(PosixFileSystem().Rename(path_, target_));
  path_.clear();
  const absl::Status flushed = PosixFileSystem().SyncFolder(parent_);
  if (flushed.ok()) return flushed;
  return absl::Status(
      flushed.code(),
      absl::StrCat(target_, " is complete, but a crash of the machine may remove it: ", flushed.message()));
}

}  // namespace shale
