// RunFolder is the folder that one run writes to.
//
//   job.textproto  the job with every default written out
//   plan.txt       the plan of programs and memory
//   metrics.jsonl  one line per step and per evaluation (proto/events.proto)
//   checkpoints/   the trained state (engine/files/checkpoint/store.h)
//   failures/      a folder for each start of the run that failed, 1, 2 and so on, with what the ranks did last
//                  (engine/run/train/run_health.h)
//   hf/            the config.json of the Hugging Face folder that the run began with and the files of its tokenizer,
//                  if any, so that the model can be exported with them when those folders are gone
//   last_checkpoint  its step, so that checkpoints which are not there are missed
//
// A run folder may be a link to one. Inside it, a run follows no link to remove, replace or append to something: it
// removes links themselves, and writes a copy in the place of a file that has other names elsewhere.
//
// CutMetrics cuts the metrics of a former run (metrics.jsonl) behind a step.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/io/folder_lock.h"
#include "engine/files/io/json_lines.h"

namespace shale {

// Has two states: claimed -> begun. Claim changes no file of a former run, so that a job which turns out to be wrong
// destroys no results. The folder is locked until this object is destroyed, so that two runs never share it. Not
// thread-safe.
class RunFolder {
 public:
  // What to do with a folder that is not empty.
  enum class Existing {
    kRefuse,    // Refuse it.
    kReplace,   // Replace a former run's files when the new run begins; keep other files.
    kContinue,  // Continue the former run.
  };

  // Creates the folder if it is missing, locks it, and checks that files can be written there. Returns AlreadyExists if
  // the folder is not empty (with kReplace and kContinue: if its content is not a run), FailedPrecondition if another
  // run holds it, if its checkpoints/ is a link, or, with kContinue, if a run that saved checkpoints has none left, or
  // the system's error.
  static absl::StatusOr<std::unique_ptr<RunFolder>> Claim(const std::string& path, Existing existing);
  RunFolder(const RunFolder&) = delete;

  struct Start {
    absl::string_view job_text;
    absl::string_view plan_text;
    std::optional<int64_t> goes_on_after;  // The step after which the run resumes; none: it starts from scratch.
    bool from_elsewhere = false;           // The run resumes from another folder; files in this one are of another run.
    std::string hf_folder;                 // Source of config.json and the tokenizer's files; empty: none.
    std::string tokenizer_folder;          // Source of the tokenizer's files, if that is another folder.
  };
  // Writes job and plan, and opens the metrics. Call once. For a run that starts from scratch, first copies the files
  // of `hf_folder`, then removes the files of a former run, its checkpoints included. For a run that resumes, keeps all
  // checkpoints; unless it resumes from elsewhere, also keeps the metrics up to its step, and hf/ if there is one.
  absl::Status Begin(const Start& start);
  // Call after each checkpoint, with its step.
  absl::Status NoteSaved(int64_t step);
  // Appends a row to metrics.jsonl. REQUIRES: Begin succeeded.
  absl::Status AppendMetrics(const JsonObject& row);

  // Returns the path for reports about the next failure: failures/1, unless there is one already.
  absl::StatusOr<std::string> NextFailurePath() const;

  // Returns a path in a run folder for a file that lives for a moment. If it is left over, the next run removes it.
  static std::string ProbePath(absl::string_view folder);

  // Returns the last step in the metrics of the run that was to be continued (kContinue), 0 if it had none.
  int64_t former_step() const { return former_step_; }
  const std::string& path() const { return path_; }
  std::string checkpoints_path() const { return RunCheckpointsPath(path_); }

 private:
  RunFolder(std::string path, FolderLock lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  // Removes the temporary files that a killed run left.
  absl::Status RemoveLeftovers();
  // Removes the checkpoints of a former run, then its records.
  absl::Status RemoveFormerRun();
  // Removes everything of a former run except its checkpoints and its job, which Begin overwrites.
  absl::Status RemoveFormerRecords();
  // Copies config.json and the tokenizer's files, from the folders that `start` names, to a hidden folder, which
  // TakeHfFiles renames to hf/.
  absl::Status CopyHfFiles(const Start& start);
  absl::Status TakeHfFiles();

  const std::string path_;
  int64_t former_step_ = 0;
  const FolderLock lock_;                     // On destruction, removes the folder if Claim made it and it is empty.
  std::unique_ptr<JsonLinesWriter> metrics_;  // Null until Begin.
};

// Larger metrics are refused.
inline constexpr int64_t kMaxMetricsBytes = int64_t{4} << 30;

// Returns the step of the last row that has one, or 0 if there is no such row or no file.
absl::StatusOr<int64_t> LastStepOfMetrics(const std::string& path);

// Keeps only the rows up to `step` in the metrics.jsonl at `path`, because the run repeats the later steps. Also
// removes rows without a step and rows that are not JSON, which a crash can leave. Does nothing if there is no file.
absl::Status CutMetrics(const std::string& path, int64_t step);

}  // namespace shale
