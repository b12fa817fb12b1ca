#include "engine/files/checkpoint/store.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "engine/api/checkpoint.h"
#include "engine/files/io/file.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr char kPrefix[] = "step-";
// Suffixes of hidden names: of a checkpoint that is being written, of one that is being removed, and of one that
// another checkpoint of the same step is replacing.
constexpr char kTemporary[] = ".tmp";
constexpr char kTrash[] = ".trash";
constexpr char kReplaced[] = ".replaced";

enum class Kind { kAbsent, kFolder, kOther };

// Returns what is at `path`. Returns kOther for a link to a folder, because removing files through it would remove
// files outside this folder. Returns an error, and not kAbsent, if a broken disk hides what is there.
absl::StatusOr<Kind> KindOf(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) == 0) return S_ISDIR(info.st_mode) ? Kind::kFolder : Kind::kOther;
  if (errno == ENOENT || errno == ENOTDIR) return Kind::kAbsent;
  return FileError(errno, "examine", path);
}

// Removes the folder at `path` and its files. Does nothing if there is nothing at `path`.
absl::Status RemoveIfPresent(const std::string& path, FileSystem& files) {
  SHALE_ASSIGN_OR_RETURN(const Kind kind, KindOf(path));
  return kind == Kind::kAbsent ? absl::OkStatus() : RemoveFolderAndFiles(path, files);
}

// Returns the step in the name of a checkpoint's folder, or -1 if `name` is not such a name.
int64_t StepOfName(absl::string_view name) {
  absl::string_view digits = name;
  int64_t step = 0;
  if (!absl::ConsumePrefix(&digits, kPrefix) || !absl::SimpleAtoi(digits, &step) || step < 0) return -1;
  return name == CheckpointFolderName(step) ? step : -1;
}

}  // namespace

std::string CheckpointFolderName(int64_t step) { return absl::StrFormat("%s%010d", kPrefix, step); }

absl::StatusOr<std::vector<CheckpointPath>> ListCheckpoints(const std::string& folder) {
  absl::StatusOr<std::vector<std::string>> names = ListFolder(folder);
  if (absl::IsNotFound(names.status())) return std::vector<CheckpointPath>();
  if (!names.ok()) return names.status();
  std::vector<CheckpointPath> checkpoints;
  for (const std::string& name : *names) {
    const int64_t step = StepOfName(name);
    if (step < 0) continue;
    const std::string path = JoinPath(folder, name);
    SHALE_ASSIGN_OR_RETURN(const Kind kind, KindOf(path));
    if (kind == Kind::kFolder) checkpoints.push_back({step, path});
  }
  std::sort(checkpoints.begin(), checkpoints.end(),
            [](const CheckpointPath& a, const CheckpointPath& b) { return a.step > b.step; });
  return checkpoints;
}

absl::StatusOr<std::vector<std::string>> ListLinkedCheckpoints(const std::string& folder) {
  absl::StatusOr<std::vector<std::string>> names = ListFolder(folder);
  if (absl::IsNotFound(names.status())) return std::vector<std::string>();
  if (!names.ok()) return names.status();
  std::vector<std::string> linked;
  for (const std::string& name : *names) {
    const std::string path = JoinPath(folder, name);
    if (StepOfName(name) >= 0 && IsLink(path)) linked.push_back(path);
  }
  return linked;
}

std::vector<CheckpointPath> BestFirst(std::vector<CheckpointPath> candidates) {
  struct Evaluated {
    double loss = 0;
    CheckpointPath checkpoint;
  };
  std::vector<Evaluated> evaluated;
  std::string data;
  std::sort(candidates.begin(), candidates.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  for (CheckpointPath& candidate : candidates) {
    const absl::StatusOr<Manifest> manifest = ReadManifest(candidate.path);
    const std::optional<double> loss = manifest.ok() ? manifest->evaluation_loss() : std::nullopt;
    if (!loss) continue;
    if (evaluated.empty()) data = manifest->evaluations.data;
    if (manifest->evaluations.data == data) evaluated.push_back({*loss, std::move(candidate)});
  }
  std::sort(evaluated.begin(), evaluated.end(), [](const Evaluated& a, const Evaluated& b) {
    return a.loss != b.loss ? a.loss < b.loss : a.checkpoint.step < b.checkpoint.step;
  });
  std::vector<CheckpointPath> best;
  for (Evaluated& one : evaluated) best.push_back(std::move(one.checkpoint));
  return best;
}

bool IsUnfinishedCheckpoint(absl::string_view name) {
  return absl::ConsumePrefix(&name, ".") && absl::ConsumeSuffix(&name, kTemporary) && StepOfName(name) >= 0;
}

absl::StatusOr<std::unique_ptr<CheckpointStore>> CheckpointStore::Open(const std::string& folder,
                                                                       const Options& options) {
  SHALE_CHECK(options.keep_last >= 1 && options.keep_every >= 0);
  SHALE_ASSIGN_OR_RETURN(FolderLock lock,
                         FolderLock::Take(folder, absl::StrCat("another run saves its checkpoints in ", folder,
                                                               ": wait until it ends, or choose another folder")));
  auto store = absl::WrapUnique(new CheckpointStore(folder, options, std::move(lock)));
  SHALE_RETURN_IF_ERROR(store->RemoveLeftovers());
  return store;
}

std::string CheckpointStore::Hidden(absl::string_view name, absl::string_view what) const {
  return JoinPath(folder_, absl::StrCat(".", name, what));
}

absl::Status CheckpointStore::RemoveLeftovers() {
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(folder_));
  for (const std::string& hidden : names) {
    absl::string_view name = hidden;
    if (!absl::ConsumePrefix(&name, ".")) continue;
    const bool replaced = absl::ConsumeSuffix(&name, kReplaced);
    if (!replaced && !absl::ConsumeSuffix(&name, kTemporary) && !absl::ConsumeSuffix(&name, kTrash)) continue;
    const std::string path = JoinPath(folder_, hidden), target = JoinPath(folder_, name);
    if (StepOfName(name) < 0) continue;
    SHALE_ASSIGN_OR_RETURN(const Kind kind, KindOf(path));
    if (kind != Kind::kFolder) continue;
    SHALE_ASSIGN_OR_RETURN(const Kind target_kind, KindOf(target));
    if (replaced && target_kind == Kind::kAbsent) {
      // The save that was replacing this checkpoint did not complete, so put the checkpoint back.
      SHALE_RETURN_IF_ERROR(files().Rename(path, target));
    } else {
      // A leftover that cannot be removed does no harm, because nobody reads it.
      RemoveFolderAndFiles(path, files()).IgnoreError();
    }
  }
  return absl::OkStatus();
}

void CheckpointStore::DisregardAfter(int64_t step) {
  for (const CheckpointPath& checkpoint : ListCheckpoints(folder_).value_or(std::vector<CheckpointPath>())) {
    if (checkpoint.step > step) disregarded_.insert(checkpoint.step);
  }
}

absl::StatusOr<std::string> CheckpointStore::Save(
    Manifest manifest, absl::FunctionRef<absl::StatusOr<std::vector<SavedFile>>(const std::string&)> write) {
  const std::string name = CheckpointFolderName(manifest.step);
  const std::string temporary = Hidden(name, kTemporary);
  absl::Status status = WriteTemporary(temporary, manifest, write);
  if (status.ok()) status = Commit(temporary, manifest.step);
  if (!status.ok()) {
    // If this fails, the next Open removes the folder.
    RemoveIfPresent(temporary, files()).IgnoreError();
    return absl::Status(status.code(),
                        absl::StrCat("cannot save the checkpoint of step ", manifest.step, ": ", status.message()));
  }
  disregarded_.erase(manifest.step);
  // The checkpoint stands even if pruning fails, so Save succeeds.
  thinning_ = RemoveUnwanted(manifest.step);
  return JoinPath(folder_, name);
}

absl::Status CheckpointStore::WriteTemporary(
    const std::string& temporary, Manifest& manifest,
    absl::FunctionRef<absl::StatusOr<std::vector<SavedFile>>(const std::string&)> write) {
  // An earlier save may have failed to remove this folder.
  SHALE_RETURN_IF_ERROR(RemoveIfPresent(temporary, files()));
  SHALE_RETURN_IF_ERROR(files().MakeFolder(temporary));
  SHALE_ASSIGN_OR_RETURN(manifest.files, write(temporary));
  manifest.ranks = std::ssize(manifest.files);
  SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<WritableFile> file, files().Create(JoinPath(temporary, kManifestName)));
  const std::string bytes = SerializeManifest(manifest);
  // Check that the manifest can be read back, because a checkpoint that cannot be read is useless.
  if (const absl::Status readable = ParseManifest(bytes).status(); !readable.ok()) {
    return absl::InternalError(absl::StrCat("the manifest could not be read back: ", readable.message()));
  }
  SHALE_RETURN_IF_ERROR(file->WriteAt(0, bytes));
  SHALE_RETURN_IF_ERROR(file->Sync());
  SHALE_RETURN_IF_ERROR(file->Close());
  return files().SyncFolder(temporary);
}

absl::Status CheckpointStore::Commit(const std::string& temporary, int64_t step) {
  const std::string name = CheckpointFolderName(step), path = JoinPath(folder_, name);
  const std::string replaced = Hidden(name, kReplaced);
  const absl::Status status = Swap(temporary, path, replaced);
  if (status.ok()) {
    RemoveIfPresent(replaced, files()).IgnoreError();
    return status;
  }
  // Restore by looking at which folders exist and not at the error, because on a network file system a rename may
  // succeed and yet report failure. Leave alone what cannot be examined.
  const auto is_absent = [](const std::string& at) { return KindOf(at).value_or(Kind::kOther) == Kind::kAbsent; };
  if (is_absent(temporary)) files().Rename(path, temporary).IgnoreError();
  if (is_absent(path) && !is_absent(replaced)) files().Rename(replaced, path).IgnoreError();
  return status;
}

absl::Status CheckpointStore::Swap(const std::string& temporary, const std::string& path, const std::string& replaced) {
  SHALE_ASSIGN_OR_RETURN(const Kind kind, KindOf(path));
  if (kind != Kind::kAbsent) {
    // An earlier save may have failed to remove this folder.
    SHALE_RETURN_IF_ERROR(RemoveIfPresent(replaced, files()));
    SHALE_RETURN_IF_ERROR(files().Rename(path, replaced));
  }
  SHALE_RETURN_IF_ERROR(files().Rename(temporary, path));
  return files().SyncFolder(folder_);
}

absl::Status CheckpointStore::RemoveUnwanted(int64_t saved_step) {
  SHALE_ASSIGN_OR_RETURN(std::vector<CheckpointPath> checkpoints, ListCheckpoints(folder_));
  // Do not count a damaged checkpoint, and keep it for inspection.
  std::erase_if(checkpoints, [&](const CheckpointPath& checkpoint) {
    return checkpoint.step > saved_step || disregarded_.contains(checkpoint.step) ||
           !CheckpointReader::Open(checkpoint.path).ok();
  });
  const std::vector<CheckpointPath> best = options_.keep_best ? BestFirst(checkpoints) : std::vector<CheckpointPath>();
  int64_t kept = 0;
  for (const CheckpointPath& checkpoint : checkpoints) {
    const bool periodic = options_.keep_every > 0 && checkpoint.step % options_.keep_every == 0;
    const bool is_best = !best.empty() && best[0].step == checkpoint.step;
    if (++kept > options_.keep_last && !periodic && !is_best) {
      SHALE_RETURN_IF_ERROR(Discard(CheckpointFolderName(checkpoint.step)));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckpointStore::Discard(const std::string& name) {
  const std::string trash = Hidden(name, kTrash);
  SHALE_RETURN_IF_ERROR(RemoveIfPresent(trash, files()));
  SHALE_RETURN_IF_ERROR(files().Rename(JoinPath(folder_, name), trash));
  return RemoveFolderAndFiles(trash, files());
}

std::string RunJobPath(absl::string_view run_folder) { return JoinPath(run_folder, kRunJob); }
std::string RunCheckpointsPath(absl::string_view run_folder) { return JoinPath(run_folder, kRunCheckpoints); }
std::string RunFailuresPath(absl::string_view run_folder) { return JoinPath(run_folder, kRunFailures); }
std::string RunHfPath(absl::string_view run_folder) { return JoinPath(run_folder, kRunHf); }
std::string RunOfCheckpoint(absl::string_view checkpoint) { return JoinPath(checkpoint, "../.."); }

absl::Status NoCheckpointIn(const std::string& checkpoints) {
  constexpr absl::string_view kGive =
      "; give the folder of a run: runs/NAME, unless telemetry.run_folder names another";
  const auto is_there = [](const std::string& path) { return access(path.c_str(), F_OK) == 0; };
  const std::string run = std::filesystem::path(checkpoints).parent_path().string();
  std::string why = "the run has saved none yet; it does at its end, and every checkpoint.every_steps steps";
  if (!is_there(run)) {
    why = absl::StrCat("there is no folder ", run, kGive);
  } else if (!is_there(RunJobPath(run))) {
    why = absl::StrCat(run, " has no job.textproto, so it is no run's", kGive);
  }
  return absl::NotFoundError(absl::StrCat("there is no checkpoint in ", checkpoints, ": ", why));
}

}  // namespace shale
