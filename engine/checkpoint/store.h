// The checkpoints of a run, in one folder: written so that none is ever half there, and thinned out.
//
//   checkpoints/step-0000000200/    a checkpoint (engine/checkpoint/manifest.h)
//   checkpoints/step-0000000400/
//   checkpoints/.step-0000000600.tmp/   being written
//
// A save writes and flushes all files of a temporary folder, the manifest last, then renames the folder and flushes its
// parent. A crash at any moment leaves whole checkpoints and hidden leftovers, which the next Open removes if it can.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/checkpoint/manifest.h"
#include "engine/io/file_system.h"
#include "engine/io/folder_lock.h"

namespace shale {

// "step-0000000600".
std::string CheckpointFolderName(int64_t step);

struct CheckpointPath {
  int64_t step = 0;  // By the folder's name.
  std::string path;
};
// The folders (no links) in `folder` that are named like checkpoints, newest first; whether they are whole only reading
// tells (CheckpointReader::Open). Empty if there is no such folder.
absl::StatusOr<std::vector<CheckpointPath>> ListCheckpoints(const std::string& folder);

// Whether a name in such a folder is that of a checkpoint that was being written when its run ended: nothing is lost
// with it.
bool IsUnfinishedCheckpoint(absl::string_view name);

// The writer of such a folder: one at a time, by a lock that ends with the process. One thread at a time.
class CheckpointStore {
 public:
  struct Options {
    int64_t keep_last = 2;   // The newest that are whole, at least 1, up to the one that was just saved.
    int64_t keep_every = 0;  // And all whose step is a multiple of this; 0: none.
    FileSystem* files = &PosixFileSystem();  // Borrowed.
  };

  // Makes the folder if it is missing, and removes what crashed saves left. FailedPrecondition if another writer has
  // it open.
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(const std::string& folder, const Options& options);
  CheckpointStore(const CheckpointStore&) = delete;

  // The checkpoints of later steps that lie there now are damaged: thinning out neither counts nor removes them.
  void DisregardAfter(int64_t step);

  const std::string& folder() const { return folder_; }
  FileSystem& files() const { return *options_.files; }

  // Writes a checkpoint: `write` puts the shard files into the temporary folder that it is given, and returns what the
  // manifest shall say of them. Then removes the checkpoints that are no longer wanted. Returns the checkpoint's path.
  // After an error there is no such checkpoint, and those before it are as they were; if only the thinning out failed
  // (see thinning()), the checkpoint stands, and the next save tries again. A checkpoint of the same step is replaced.
  absl::StatusOr<std::string> Save(
      Manifest manifest, absl::FunctionRef<absl::StatusOr<std::vector<SavedFile>>(const std::string& temporary)> write);
  // Whether the last save could remove what is no longer wanted.
  const absl::Status& thinning() const { return thinning_; }

 private:
  CheckpointStore(std::string folder, const Options& options, FolderLock lock)
      : folder_(std::move(folder)), options_(options), lock_(std::move(lock)) {}

  absl::Status RemoveLeftovers();
  absl::Status WriteTemporary(const std::string& temporary, Manifest& manifest,
                              absl::FunctionRef<absl::StatusOr<std::vector<SavedFile>>(const std::string&)> write);
  // Gives the temporary folder its name; on failure all is as before, as far as the disk lets it.
  absl::Status Commit(const std::string& temporary, int64_t step);
  absl::Status Swap(const std::string& temporary, const std::string& path, const std::string& replaced);
  // Later checkpoints than the one just saved are not counted.
  absl::Status RemoveUnwanted(int64_t saved_step);
  // A folder that nobody may read any more is renamed first: half of one must not be taken for a checkpoint.
  absl::Status Discard(const std::string& name);
  std::string Hidden(absl::string_view name, absl::string_view what) const;

  const std::string folder_;
  const Options options_;
  const FolderLock lock_;  // Removes the folder if Open made it and nothing was saved.
  std::set<int64_t> disregarded_;
  absl::Status thinning_;
};

}  // namespace shale
