#include "engine/run/train/run_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "engine/api/job.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/hugging_face/folder_files.h"
#include "engine/files/hugging_face/tensor_files.h"
#include "engine/files/io/file.h"
#include "engine/plan/config/job_files.h"
#include "engine/text/tokenizer/tokenizer_folder.h"
#include "kernels/check.h"
#include "nlohmann/json.hpp"

namespace shale {
namespace {

constexpr char kPlan[] = "plan.txt";
constexpr char kMetrics[] = "metrics.jsonl";
constexpr char kStagedHf[] = ".hf.tmp";
constexpr char kProbe[] = ".probe";
constexpr char kSaved[] = "last_checkpoint";  // The step of the last checkpoint.
constexpr int64_t kMaxHfFileBytes = int64_t{1} << 30;
constexpr size_t kNamesShown = 4;

// Returns whether there is something at `path`. A link counts, wherever it leads.
bool Present(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0;
}

absl::Status Remove(const std::string& path) {
  if (unlink(path.c_str()) != 0 && errno != ENOENT) return FileError(errno, "remove", path);
  return absl::OkStatus();
}

// Returns whether `name` is that of a file which was being written when a run was killed.
bool IsTemporary(absl::string_view name) {
  for (const char* file : {kRunJob, kPlan, kMetrics, kProbe, kSaved}) {
    if (absl::StartsWith(name, absl::StrCat(".", file, ".tmp-"))) return true;
  }
  return name == kProbe || absl::StartsWith(name, kRunTracePart);
}

bool HasCheckpoints(const std::string& path) {
  const absl::StatusOr<std::vector<CheckpointPath>> checkpoints = ListCheckpoints(RunCheckpointsPath(path));
  return checkpoints.ok() && !checkpoints->empty();
}

// Returns whether a file or folder holds no results, because a run left it that was killed before Begin, or while it
// saved a copy of the checkpoint that it resumed from.
bool IsTraceOfAClaim(const std::string& path, absl::string_view name) {
  if (name == kRunFailures) return true;  // Another process ended before the run began.
  if (name != kRunCheckpoints) return IsTemporary(name) || name == kStagedHf;
  const absl::StatusOr<std::vector<std::string>> checkpoints = ListFolder(JoinPath(path, name));
  const auto unfinished = [](const std::string& checkpoint) {
    return IsUnfinishedCheckpoint(checkpoint) || FolderLock::IsLockFile(checkpoint);
  };
  return checkpoints.ok() && std::all_of(checkpoints->begin(), checkpoints->end(), unfinished);
}

// Returns whether a folder that holds `names` is that of a run. A job.textproto alone may also be a job that somebody
// wrote there.
bool HoldsRun(const std::string& path, const std::vector<std::string>& names) {
  constexpr int64_t kMostJobBytes = int64_t{1} << 20;
  const auto has = [&](const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  if (!has(kRunJob)) return false;
  return has(kPlan) || has(kMetrics) || HasCheckpoints(path) ||
         absl::StartsWith(ReadFile(RunJobPath(path), kMostJobBytes).value_or(""), kResolvedJobHead);
}

// Checks whether a run may start in a folder that holds `names`.
absl::Status CheckContents(const std::string& path, std::vector<std::string> names, RunFolder::Existing existing) {
  const auto is_trace = [&](const std::string& name) { return IsTraceOfAClaim(path, name); };
  if (std::all_of(names.begin(), names.end(), is_trace)) return absl::OkStatus();
  // A run that resumes from another folder's checkpoint saves its own copy before it writes job.textproto.
  const bool is_run = HoldsRun(path, names) || (existing == RunFolder::Existing::kContinue && HasCheckpoints(path));
  if (is_run && existing != RunFolder::Existing::kRefuse) return absl::OkStatus();
  if (names.size() > kNamesShown) {
    names.resize(kNamesShown);
    names.push_back("...");
  }
  return absl::AlreadyExistsError(absl::StrCat(
      "the run folder ", path, " is not empty (", absl::StrJoin(names, ", "), ")",
      is_run ? ": choose another with telemetry.run_folder, resume that run with --resume=latest, or replace it with "
               "--overwrite"
             : " and holds no run (no job.textproto that a run recorded): choose another with telemetry.run_folder"));
}

// Returns OK if what a run writes and removes again lies in its folder. The run folder itself may be a link.
absl::Status CheckNoLink(const std::string& path) {
  const std::string checkpoints = RunCheckpointsPath(path);
  if (!IsLink(checkpoints)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(checkpoints,
                   " is a link, and a run removes old checkpoints, but nothing outside of its folder: put a folder in "
                   "its place, or make ",
                   path, " itself the link"));
}

// Returns whether a name among the checkpoints is that of one, also while another replaces it.
bool NamesCheckpoint(absl::string_view name) {
  return absl::StrContains(name, "step-") && !IsUnfinishedCheckpoint(name);
}

// Checks that the checkpoints of a run that trained up to `step` have not been lost.
absl::Status CheckNotLost(const std::string& path, int64_t step) {
  const std::string checkpoints = RunCheckpointsPath(path);
  const absl::StatusOr<std::vector<std::string>> names = ListFolder(checkpoints);
  if (!names.ok() && !absl::IsNotFound(names.status())) return names.status();
  if (names.ok() && std::any_of(names->begin(), names->end(), NamesCheckpoint)) return absl::OkStatus();
  if (!Present(JoinPath(path, kSaved))) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the run in ", path, " trained up to step ", step, " and saved checkpoints, but there is none in ", checkpoints,
      ": mount or move them there. To give that run up, choose another folder with telemetry.run_folder, or replace it "
      "with --overwrite"));
}

// Adds the field that names the folder to an error of making it or of writing there.
absl::Status WithField(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("telemetry.run_folder: ", status.message()));
}

// Lets the tokenizer in `to`, which was copied from another folder than the model's config.json, keep its class.
absl::Status NameTokenizerClass(const std::string& from, const std::string& to) {
  if (access(JoinPath(from, "tokenizer.json").c_str(), F_OK) != 0) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(const std::string config, TokenizerConfigWithClass(from));
  return WriteFileDurably(JoinPath(to, "tokenizer_config.json"), config);
}

// Returns the step of a row, or nothing if it has none, or is not JSON. A crash of the machine may leave zeros behind a
// row, which the parser would take for its end.
std::optional<int64_t> StepOf(absl::string_view row) {
  if (row.find('\0') != absl::string_view::npos) return std::nullopt;
  const auto json = nlohmann::json::parse(row.begin(), row.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  const auto found = json.find("step");
  if (found == json.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<int64_t>();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RunFolder>> RunFolder::Claim(const std::string& path, Existing existing) {
  const std::string held = absl::StrCat("another run is writing to ", path,
                                        ": wait until it ends, or choose another folder with telemetry.run_folder");
  absl::StatusOr<FolderLock> taken = FolderLock::Take(path, held);
  if (!taken.ok()) return taken.status().message() == held ? taken.status() : WithField(taken.status());
  FolderLock lock = *std::move(taken);
  auto folder = absl::WrapUnique(new RunFolder(path, std::move(lock)));
  SHALE_ASSIGN_OR_RETURN(std::vector<std::string> names, ListFolder(path));
  std::erase_if(names, FolderLock::IsLockFile);
  SHALE_RETURN_IF_ERROR(CheckContents(path, std::move(names), existing));
  SHALE_RETURN_IF_ERROR(CheckNoLink(path));
  if (existing == Existing::kContinue) {
    SHALE_ASSIGN_OR_RETURN(folder->former_step_, LastStepOfMetrics(JoinPath(path, kMetrics)));
    SHALE_RETURN_IF_ERROR(CheckNotLost(path, folder->former_step_));
  }
  // Create a temporary file, which is removed at once, to find out now and not after the first steps whether files can
  // be written.
  SHALE_RETURN_IF_ERROR(WithField(DurableFile::Create(JoinPath(path, kMetrics)).status()));
  return folder;
}

std::string RunFolder::ProbePath(absl::string_view folder) { return JoinPath(folder, kProbe); }

absl::StatusOr<std::string> RunFolder::NextFailurePath() const {
  const std::string failures = RunFailuresPath(path_);
  int last = 0;
  if (access(failures.c_str(), F_OK) == 0) {
    SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(failures));
    for (const std::string& name : names) {
      if (int number = 0; absl::SimpleAtoi(name, &number)) last = std::max(last, number);
    }
  }
  return JoinPath(failures, absl::StrCat(last + 1));
}

absl::Status RunFolder::RemoveLeftovers() {
  SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(path_));
  for (const std::string& name : names) {
    if (IsTemporary(name)) SHALE_RETURN_IF_ERROR(Remove(JoinPath(path_, name)));
    if (name == kStagedHf) SHALE_RETURN_IF_ERROR(RemoveFolderAndFiles(JoinPath(path_, name)));
  }
  return absl::OkStatus();
}

absl::Status RunFolder::RemoveFormerRun() {
  // Remove the checkpoints first: they must never lie beside a job that they do not belong to.
  SHALE_ASSIGN_OR_RETURN(const std::vector<CheckpointPath> checkpoints, ListCheckpoints(checkpoints_path()));
  for (const CheckpointPath& checkpoint : checkpoints) SHALE_RETURN_IF_ERROR(RemoveFolderAndFiles(checkpoint.path));
  return RemoveFormerRecords();
}

absl::Status RunFolder::RemoveFormerRecords() {
  if (Present(RunHfPath(path_))) SHALE_RETURN_IF_ERROR(RemoveFolderAndFiles(RunHfPath(path_)));
  if (const std::string failures = RunFailuresPath(path_); Present(failures)) {
    if (!IsLink(failures)) {
      SHALE_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(failures));
      for (const std::string& name : names) SHALE_RETURN_IF_ERROR(RemoveFolderAndFiles(JoinPath(failures, name)));
    }
    SHALE_RETURN_IF_ERROR(RemoveFolderAndFiles(failures));
  }
  for (const char* name : {kMetrics, kPlan, kSaved}) SHALE_RETURN_IF_ERROR(Remove(JoinPath(path_, name)));
  return absl::OkStatus();
}

absl::Status RunFolder::CopyHfFiles(const Start& start) {
  const std::string to = JoinPath(path_, kStagedHf);
  SHALE_RETURN_IF_ERROR(MakeFolders(to));
  const bool other_tokenizer = !start.tokenizer_folder.empty() && start.tokenizer_folder != start.hf_folder;
  SHALE_ASSIGN_OR_RETURN(std::vector<HfFile> files,
                         ListCopiedHfFiles(other_tokenizer ? start.tokenizer_folder : start.hf_folder));
  std::vector<const char*> of_model;
  if (!start.hf_folder.empty()) of_model = {"config.json"};
  if (!start.hf_folder.empty() && other_tokenizer) of_model.push_back("generation_config.json");
  for (const char* name : of_model) {
    absl::StatusOr<std::string> found = ResolveInFolder(start.hf_folder, name);
    if (!found.ok() && !absl::IsNotFound(found.status())) return found.status();
    files.erase(std::remove_if(files.begin(), files.end(), [&](const HfFile& file) { return file.name == name; }),
                files.end());
    if (found.ok()) files.push_back({name, *std::move(found)});
  }
  for (const HfFile& file : files) {
    SHALE_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(file.path, kMaxHfFileBytes));
    SHALE_RETURN_IF_ERROR(WriteFileDurably(JoinPath(to, file.name), bytes));
  }
  return other_tokenizer ? NameTokenizerClass(start.tokenizer_folder, to) : absl::OkStatus();
}

absl::Status RunFolder::TakeHfFiles() {
  // A file or a link may stand in its place.
  struct stat info;
  const std::string hf = RunHfPath(path_);
  if (lstat(hf.c_str(), &info) == 0 && !S_ISDIR(info.st_mode)) SHALE_RETURN_IF_ERROR(Remove(hf));
  SHALE_RETURN_IF_ERROR(PosixFileSystem().Rename(JoinPath(path_, kStagedHf), RunHfPath(path_)));
  return PosixFileSystem().SyncFolder(path_);
}

absl::Status RunFolder::Begin(const Start& start) {
  SHALE_CHECK(metrics_ == nullptr) << path_ << ": begun twice";
  SHALE_RETURN_IF_ERROR(RemoveLeftovers());
  const bool anew = !start.goes_on_after.has_value();
  const bool own_past = !anew && !start.from_elsewhere;
  const bool has_hf = !start.hf_folder.empty() || !start.tokenizer_folder.empty();
  struct stat hf;  // Of a link itself: the files behind it may be those of anything.
  const bool keeps_hf = own_past && lstat(RunHfPath(path_).c_str(), &hf) == 0 && S_ISDIR(hf.st_mode);
  const bool takes_hf = has_hf && !keeps_hf;
  if (takes_hf) SHALE_RETURN_IF_ERROR(CopyHfFiles(start));
  if (anew) {
    SHALE_RETURN_IF_ERROR(RemoveFormerRun());
  } else if (start.from_elsewhere) {
    SHALE_RETURN_IF_ERROR(RemoveFormerRecords());
  } else {
    SHALE_RETURN_IF_ERROR(CutMetrics(JoinPath(path_, kMetrics), *start.goes_on_after));
  }
  // Write the job before all other files that stay, because it marks the folder as that of a run.
  SHALE_RETURN_IF_ERROR(WriteFileDurably(RunJobPath(path_), start.job_text));
  if (takes_hf) SHALE_RETURN_IF_ERROR(TakeHfFiles());
  SHALE_RETURN_IF_ERROR(WriteFileDurably(JoinPath(path_, kPlan), start.plan_text));
  if (HasCheckpoints(path_)) SHALE_RETURN_IF_ERROR(NoteSaved(start.goes_on_after.value_or(0)));
  SHALE_RETURN_IF_ERROR(MakeOwnFile(JoinPath(path_, kMetrics), kMaxMetricsBytes));
  SHALE_ASSIGN_OR_RETURN(metrics_, JsonLinesWriter::Open(JoinPath(path_, kMetrics), JsonLinesWriter::Mode::kContinue));
  return absl::OkStatus();
}

absl::Status RunFolder::NoteSaved(int64_t step) {
  return WriteFileDurably(JoinPath(path_, kSaved), absl::StrCat(step, "\n"));
}

absl::Status RunFolder::AppendMetrics(const JsonObject& row) {
  SHALE_CHECK(metrics_ != nullptr) << path_ << ": metrics before Begin";
  return metrics_->Append(row);
}

absl::StatusOr<int64_t> LastStepOfMetrics(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxMetricsBytes);
  if (absl::IsNotFound(text.status())) return 0;
  if (!text.ok()) return text.status();
  const std::vector<absl::string_view> rows = absl::StrSplit(*text, '\n', absl::SkipEmpty());
  for (auto row = rows.rbegin(); row != rows.rend(); ++row) {
    if (const std::optional<int64_t> step = StepOf(*row)) return *step;
  }
  return 0;
}

absl::Status CutMetrics(const std::string& path, int64_t step) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxMetricsBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  if (!text.ok()) return text.status();
  std::string kept;
  for (absl::string_view row : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
    if (StepOf(row).value_or(step + 1) <= step) kept.append(row.data(), row.size()).push_back('\n');
  }
  return kept == *text ? absl::OkStatus() : WriteFileDurably(path, kept);
}

}  // namespace shale
