// CheckpointStore keeps the checkpoints of a run in one folder. Each appears complete or not at all, and old ones are
// pruned. Also verifies every byte of a checkpoint.
//
//   checkpoints/step-0000000200/    a checkpoint (engine/files/checkpoint/manifest.h)
//   checkpoints/step-0000000400/
//   checkpoints/.step-0000000600.tmp/   being written
//
// A save writes and flushes all files in a temporary folder, the manifest last, then renames the folder and flushes its
// parent. A crash at any moment leaves only complete checkpoints, and hidden leftovers that the next Open removes if it
// can.
//
// Also names the parts of a run folder, which the checkpoints lie in.
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
#include "absl/types/span.h"
#include "engine/files/checkpoint/manifest.h"
#include "engine/files/io/file.h"
#include "engine/files/io/folder_lock.h"

namespace shale {

// Returns a name such as "step-0000000600".
std::string CheckpointFolderName(int64_t step);

struct CheckpointPath {
  int64_t step = 0;  // According to the folder's name.
  std::string path;
};
// Returns the folders (not links) in `folder` that are named like checkpoints, newest first, or nothing if `folder`
// does not exist. Returns an error if the system cannot say whether one of them is a folder. Does not check that the
// checkpoints are intact; CheckpointReader::Open does.
absl::StatusOr<std::vector<CheckpointPath>> ListCheckpoints(const std::string& folder);

// Returns the paths in `folder` that are named like checkpoints and are links, through which nothing is written or
// removed, so that ListCheckpoints leaves them out. Returns nothing if `folder` does not exist.
absl::StatusOr<std::vector<std::string>> ListLinkedCheckpoints(const std::string& folder);

// Returns the checkpoints among `candidates` whose manifest can be read and has the loss of an evaluation, best first;
// of equal losses the earlier one. Leaves out those whose loss is of other data than that of the newest among them.
std::vector<CheckpointPath> BestFirst(std::vector<CheckpointPath> candidates);

// Returns whether a name in the folder of checkpoints belongs to a checkpoint that was still being written when its run
// ended. Removing it loses nothing.
bool IsUnfinishedCheckpoint(absl::string_view name);

// Writes the checkpoints of one run. A lock, which ends with the process, ensures that a folder has one writer at a
// time. Used by one thread at a time.
class CheckpointStore {
 public:
  struct Options {
    int64_t keep_last = 2;   // How many of the newest intact checkpoints to keep, counted from the last save; >= 1.
    int64_t keep_every = 0;  // Also keep every checkpoint whose step is a multiple of this; 0: none.
    bool keep_best = false;  // Also keep the one with the lowest loss of an evaluation (Manifest::evaluation_loss).
    FileSystem* files = &PosixFileSystem();  // Borrowed.
  };

  // Creates the folder if it is missing. Removes the leftovers of saves that crashed, and puts a checkpoint back that
  // such a save was about to replace. Returns FailedPrecondition if another writer has the folder open.
  static absl::StatusOr<std::unique_ptr<CheckpointStore>> Open(const std::string& folder, const Options& options);
  CheckpointStore(const CheckpointStore&) = delete;

  // Excludes from pruning the checkpoints after `step` that are in the folder now: like damaged ones, they are neither
  // counted nor removed. Saving a checkpoint of the same step ends this for that step.
  void DisregardAfter(int64_t step);

  const std::string& folder() const { return folder_; }
  FileSystem& files() const { return *options_.files; }

  // Writes a checkpoint, prunes the checkpoints that are no longer wanted, and returns the path of the new one. `write`
  // must write the shard files into the temporary folder that it is given, and return their entries for the manifest.
  // Replaces a checkpoint of the same step. After an error there is no new checkpoint, and the earlier ones are
  // unchanged. If only the pruning failed (see thinning()), the checkpoint stands, and the next save prunes again.
  absl::StatusOr<std::string> Save(
      Manifest manifest, absl::FunctionRef<absl::StatusOr<std::vector<SavedFile>>(const std::string& temporary)> write);
  // Returns OK if the last save pruned every checkpoint that is no longer wanted, otherwise the error of pruning.
  const absl::Status& thinning() const { return thinning_; }

 private:
  CheckpointStore(std::string folder, const Options& options, FolderLock lock)
      : folder_(std::move(folder)), options_(options), lock_(std::move(lock)) {}

  absl::Status RemoveLeftovers();
  absl::Status WriteTemporary(const std::string& temporary, Manifest& manifest,
                              absl::FunctionRef<absl::StatusOr<std::vector<SavedFile>>(const std::string&)> write);
  // Renames the temporary folder to its final name. On failure restores the former state, as far as the disk allows.
  absl::Status Commit(const std::string& temporary, int64_t step);
  // Renames `path`, if it exists, to `replaced`, and `temporary` to `path`. Flushes the folder.
  absl::Status Swap(const std::string& temporary, const std::string& path, const std::string& replaced);
  // Prunes checkpoints up to `saved_step`. Later ones are neither counted nor removed.
  absl::Status RemoveUnwanted(int64_t saved_step);
  // Removes a checkpoint. Renames its folder first, so that a partly removed one is never taken for a checkpoint.
  absl::Status Discard(const std::string& name);
  // Returns the path of the hidden folder for a checkpoint's name and a suffix.
  std::string Hidden(absl::string_view name, absl::string_view what) const;

  const std::string folder_;
  const Options options_;
  const FolderLock lock_;  // On destruction, removes the folder if Open made it and nothing was saved.
  std::set<int64_t> disregarded_;
  absl::Status thinning_;
};

// Names within a run folder.
inline constexpr char kRunJob[] = "job.textproto";
inline constexpr char kRunCheckpoints[] = "checkpoints";
inline constexpr char kRunFailures[] = "failures";  // Exists only if the run has failed.
inline constexpr char kRunHf[] = "hf";              // Copies of files of model.hf_folder. Exists only if that was set.
// What process N > 0 of a run that is traced writes has this name and N. Process 0 reads and removes it at the end.
inline constexpr char kRunTracePart[] = "trace.process";

// Return the path of that part of `run_folder`.
std::string RunJobPath(absl::string_view run_folder);
std::string RunCheckpointsPath(absl::string_view run_folder);
std::string RunFailuresPath(absl::string_view run_folder);
std::string RunHfPath(absl::string_view run_folder);
// Returns the path of the run folder that contains a checkpoint. Does not check that it is a run folder.
std::string RunOfCheckpoint(absl::string_view checkpoint);

// Returns NotFound for the folder `checkpoints` of a run, in which there is no checkpoint. The message says what is
// there instead, and what to do.
absl::Status NoCheckpointIn(const std::string& checkpoints);

struct Verified {
  int64_t bytes = 0;    // Bytes read.
  int64_t damages = 0;  // Calls of `damaged`.
};

// Calls `damaged` with one line for each problem: each damaged chunk with its file and byte range, and each file that
// is missing, of another size than recorded, not a regular file, or unreadable because its disk is damaged. If there
// are none, calls it with the error of CheckpointReader::Open, if any. Unlike Open it does not stop at the first
// problem and needs only an intact manifest. Returns an error if the manifest cannot be read (see ReadManifest) or if
// the system refuses a read. Uses no memory besides the headers and `staging`, which must have at least
// kCheckpointChunkBytes.
absl::StatusOr<Verified> VerifyCheckpoint(const std::string& folder, absl::Span<char> staging,
                                          absl::FunctionRef<void(const std::string& damage)> damaged);

}  // namespace shale
