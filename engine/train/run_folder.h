// The folder that one run writes to: what it was told, what it planned, what it measured, what it learned.
//
//   job.textproto  the job, every default written out
//   plan.txt       the memory plan
//   metrics.jsonl  one line per step and per evaluation (engine/train/metrics.h)
//   checkpoints/   the trained state (engine/checkpoint/store.h)
//   hf/            of a run that began with a Hugging Face folder: its config.json and tokenizer files, so that the
//   model
//                  can be exported with them when that folder is gone
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/io/folder_lock.h"
#include "engine/io/json_lines.h"

namespace shale {

// Claimed -> begun. A claim changes nothing of what a former run left there, so that a job which turns out to be wrong
// costs nobody their results; it holds a lock on the folder until destruction, so that two runs never share one. One
// thread.
class RunFolder {
 public:
  enum class Existing {
    kRefuse,    // A folder that is not empty is refused.
    kReplace,   // A former run's files are replaced when the new run begins; other files stay.
    kContinue,  // A former run is gone on with.
  };

  // Makes the folder if it is missing and proves that files can be written there. Errors: AlreadyExists when something
  // is in it (with the others: when that is not a run), FailedPrecondition when another run holds it, or what the
  // system says.
  static absl::StatusOr<std::unique_ptr<RunFolder>> Claim(const std::string& path, Existing existing);
  RunFolder(const RunFolder&) = delete;

  struct Start {
    absl::string_view job_text;
    absl::string_view plan_text;
    std::optional<int64_t> goes_on_after;  // A step; none: the run begins anew.
    bool from_elsewhere = false;  // It goes on from a checkpoint of another folder: what lies here is of another past.
    std::string hf_folder;        // Where config.json and the tokenizer's files come from; empty: nowhere.
  };
  // Writes job and plan, and starts the metrics. Once. A run that begins anew removes what a former run left, its
  // checkpoints included, once everything is read that the new one needs; one that goes on keeps all checkpoints, and,
  // unless it came from elsewhere, the metrics up to its step, and hf/ if it has that.
  absl::Status Begin(const Start& start);
  // REQUIRES: begun.
  absl::Status AppendMetrics(const JsonObject& row);

  const std::string& path() const { return path_; }
  std::string checkpoints_path() const { return CheckpointsPath(path_); }

  // Where a run keeps what others read.
  static std::string JobPath(absl::string_view run_folder);
  static std::string CheckpointsPath(absl::string_view run_folder);
  static std::string HfPath(absl::string_view run_folder);  // May be missing.
  // The run folder that a checkpoint lies in, if it lies in one.
  static std::string OfCheckpoint(absl::string_view checkpoint);

 private:
  RunFolder(std::string path, FolderLock lock) : path_(std::move(path)), lock_(std::move(lock)) {}

  absl::Status RemoveLeftovers();
  absl::Status RemoveFormerRun();
  // All of it but checkpoints.
  absl::Status RemoveFormerRecords();
  // Copies what is kept of a Hugging Face folder to a hidden one, which TakeHfFiles gives its name.
  absl::Status CopyHfFiles(const std::string& from);
  absl::Status TakeHfFiles();

  const std::string path_;
  const FolderLock lock_;                     // Removes the folder if Claim made it and nothing has been written since.
  std::unique_ptr<JsonLinesWriter> metrics_;  // Null until begun.
};

}  // namespace shale
