// Decides when a run saves its state, and what a failed save means for the run.
//
//   after every step   Reports the pending save if it has ended. If a checkpoint is due, or the evaluation after the
//                      step is the best so far (checkpoint.keep_best), begins a save. With checkpoint.asynchronous,
//                      further steps run while it is written.
//   at the end         Waits for the pending save and reports it. Then saves the last state, unless it is saved
//                      already.
//
// If checkpoint.on_failure is kStop, a failed save ends the run and no further save is tried. With kContinue only a
// failure of the save at the end is an error.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/plan/config/job.h"
#include "engine/run/train/checkpointer.h"

namespace shale {

// Saves the state after the last step. REQUIRES of Save and StartSave: TakeSave has returned the report of the previous
// StartSave.
class CheckpointSaver {
 public:
  virtual ~CheckpointSaver() = default;
  // Returns when the checkpoint is committed or has failed.
  virtual CheckpointReport Save() = 0;
  // Begins a save, whose report TakeSave returns. Returns an error if the run cannot go on.
  virtual absl::Status StartSave() = 0;
  // Returns the report of the save that StartSave began. Returns nothing if there is none, or if it has not ended and
  // `wait` is kNo.
  virtual std::optional<CheckpointReport> TakeSave(Checkpointer::Wait wait) = 0;
};

// Used by one thread.
class CheckpointPolicy {
 public:
  // Called with the report of every save that has ended, including one that failed. May be empty. If it returns an
  // error, the function that reported the save returns that error.
  using OnCheckpoint = std::function<absl::Status(const CheckpointReport&)>;

  // Borrows `saver`.
  CheckpointPolicy(const CheckpointConfig& config, CheckpointSaver& saver) : config_(config), saver_(saver) {}

  // Call if the folder has an intact checkpoint of `step`, the last step so far.
  void SetSaved(int64_t step) { saved_step_ = step; }

  // Call after each step and its evaluation, with whether that was the best so far. `done` returns whether that was the
  // last step; if so, AtEnd saves. Returns an error if the run must end.
  absl::Status AfterStep(int64_t step, bool best, absl::FunctionRef<bool()> done, const OnCheckpoint& on_checkpoint);

  // Call when the run ends, for whatever reason, with its last step. If `intact` is false, the state is not that of the
  // last step and is not saved. Returns the error of the save, the error of a pending save if on_failure is kStop, or
  // the error of `on_checkpoint`.
  absl::Status AtEnd(int64_t step, bool intact, const OnCheckpoint& on_checkpoint);

  // Waits for the pending save, then saves the state and returns the checkpoint's path once it is committed. Calls no
  // OnCheckpoint, not even for the pending save. AtEnd does not save that step again. If the pending save failed and
  // on_failure is kStop, returns its error and saves nothing.
  absl::StatusOr<std::string> SaveNow();

 private:
  // Reports the pending save if it has ended. With Wait::kYes, waits for it to end. Returns the error of the save only
  // if on_failure is kStop.
  absl::Status Take(Checkpointer::Wait wait, const OnCheckpoint& on_checkpoint);
  absl::Status Report(const CheckpointReport& report, const OnCheckpoint& on_checkpoint);

  const CheckpointConfig config_;
  CheckpointSaver& saver_;
  int64_t saved_step_ = -1;   // Step of the newest checkpoint that is known to be intact.
  bool save_failed_ = false;  // The last save failed, and on_failure is kStop.
};

}  // namespace shale
