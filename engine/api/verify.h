// Checks of a job before a long run.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/api/data_source.h"
#include "engine/api/job.h"

namespace shale {

class Backend;  // engine/run/runtime/backend.h
namespace proto {
class MachineProfile;
}  // namespace proto

// What a verification found.
enum class VerifyOutcome {
  kHolds,
  kFails,
  kNotRun,  // The job has nothing that this could check, or this machine cannot run it. VerifyRow::remark says why.
};

// One check.
struct VerifyRow {
  std::string check;    // What was compared: "4 micro-batches".
  std::string against;  // With what: "one batch of 16".
  VerifyOutcome outcome = VerifyOutcome::kHolds;
  double difference = 0;  // The largest that was found. What it is relative to depends on the check.
  double tolerance = 0;   // The largest that is allowed. 0: all bits must be the same.
  // After kFails: what is to blame (a parameter, a sample, an op), with the numbers, and where to look. After kNotRun:
  // why. After kHolds, what the check covered, where the columns do not say it; may be empty.
  std::string remark;
};

struct VerifyReport {
  std::vector<VerifyRow> rows;
  // What was made smaller than the job: one line each.
  std::vector<std::string> shrunk;
  double seconds = 0;
  // How long a step of the small job took, and how long it was predicted to take. Empty without VerifyOptions::machine.
  // This is no check, because small steps vary: only trials of the job's own size say how fast the job is.
  std::string time;

  // Returns whether no check failed.
  bool holds() const;
  // Returns the table: its head, a line for each check, and the remarks.
  std::string Text() const;
  // Returns what stands under the table: what was shrunk, the time of a step, the remarks of the checks with the
  // failures last, and a line with the result.
  std::string Remarks() const;
};

// Returns the line of one check in the table, without its remark. It has no line end.
std::string VerifyLine(const VerifyRow& row);

// Returns the head of the table.
std::string VerifyHead();

// Verify: the checks that careful people make by hand before a long run.
//
//   SHALE_ASSIGN_OR_RETURN(const VerifyReport report, Verify(job, {.backend = backend.get()}));
//   if (!report.holds()) std::fputs(report.Text().c_str(), stderr);
//
// They run the job's own model, data and backend, in a few short trials that are as small as they must be:
//
//   data             a source that is read again, backwards, gives the same samples
//   micro-batches    their gradients add up to that of one large batch
//   ranks            compute what one rank computes
//   recompute        every preset of activation checkpointing, and the job's own choice, give the bits of none
//   save and resume  a resumed run computes the bits of one that went on, with all settings of the job
//   evaluation       gives the loss of the step
//   target weights   the loss obeys them as data.target_weights says (masks, for a job without weights)
//   gradients        are the slopes of the loss, parameter by parameter, in fp32
//   peak             the memory that all of these runs measured is what was planned
struct VerifyOptions {
  // The backend of the job. Required. Borrowed.
  const Backend* backend = nullptr;
  // The profile of this machine, by which the time of a step is predicted. Null: the report says nothing of time.
  // Borrowed.
  const proto::MachineProfile* machine = nullptr;
  // As in TrainerOptions.
  std::optional<CustomModel> model;
  // As in TrainerOptions. Samples of the first positions are read, twice if the source allows it. After that, a source
  // that can only be read in order (DataSource::sequential) is no longer at its start: make a new one for the run.
  // Borrowed.
  DataSource* data = nullptr;
  // About how long all of it may take. If a step of the job takes too long for that, steps become smaller; if gradients
  // of all parameters take too long, some are checked. Other checks take the time that they need.
  double seconds = 60;
  // Where the checks of saving make a folder of their own, which they remove. Empty: the system's folder for such
  // files.
  std::string temporary_folder;
  // Called with each row as it ends, on the caller's thread. May be empty.
  std::function<void(const VerifyRow&)> on_row;
  // Set by any thread, or by a signal handler, to end the call with Cancelled before the next step of a trial. Must
  // stay set until then. Borrowed; may be null.
  const std::atomic<bool>* cancelled = nullptr;
};

// Runs the checks. Writes nothing into the job's run folder. Takes the host memory of three copies of the model's
// weights in fp32 beside what a run takes.
//
// A check that finds something wrong is a row that fails, not an error. Errors are those of Trainer::Create for the
// small job: of the job, the model, the data, or a machine that is too small for them; and Cancelled. Whatever the
// result, the folder for the checks of saving is gone when the function returns. Any thread may call it, and any number
// of threads at once.
absl::StatusOr<VerifyReport> Verify(const Job& job, const VerifyOptions& options);

}  // namespace shale
