// Decides when a run saves its state, and what a failed save means for the run.
//
//   after every step   Reports a save that has ended since. If a checkpoint is due, begins one; steps go on meanwhile.
//   at the end         Waits for the pending save. Then saves the last state, unless it is saved already.
//
// A failed save ends the run if checkpoint.on_failure is kStop, and then no further save is tried. With kContinue only
// a failure of the save at the end is an error.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/config/job.h"
#include "engine/train/checkpointer.h"

namespace shale {

// Saves the state after the last step. REQUIRES of Save and StartSave: TakeSave has returned the report of the save
// before.
class CheckpointSaver {
 public:
  virtual ~CheckpointSaver() = default;
  // Returns when the checkpoint is committed or has failed.
  virtual CheckpointReport Save() = 0;
  // Begins a save, whose report TakeSave returns. An error means that the run cannot go on.
  virtual absl::Status StartSave() = 0;
  // Returns the report of the save that StartSave began. Returns nothing if there is none, or if it has not ended and
  // `wait` is kNo.
  virtual std::optional<CheckpointReport> TakeSave(Checkpointer::Wait wait) = 0;
};

// Used by one thread.
class CheckpointPolicy {
 public:
  // Called with the report of every save that has ended, also of one that failed. May be empty. If it returns an error,
  // the call that reported the save returns that error.
  using OnCheckpoint = std::function<absl::Status(const CheckpointReport&)>;

  // Borrows `saver`.
  CheckpointPolicy(const CheckpointConfig& config, CheckpointSaver& saver) : config_(config), saver_(saver) {}

  // Tells that the folder has a good checkpoint of `step`, the last step so far.
  void SetSaved(int64_t step) { saved_step_ = step; }

  // Call after each step. `done` tells whether it was the last step: then the save is left to AtEnd. Returns an error
  // if the run must end.
  absl::Status AfterStep(int64_t step, absl::FunctionRef<bool()> done, const OnCheckpoint& on_checkpoint);

  // Call when the run ends, for whatever reason, with its last step. If `intact` is false, the state is not that of the
  // last step and is not saved. Returns the error of the last save.
  absl::Status AtEnd(int64_t step, bool intact, const OnCheckpoint& on_checkpoint);

  // Saves the state now and returns the checkpoint's path, once it is committed. Reports to nobody. AtEnd does not save
  // that step again.
  absl::StatusOr<std::string> SaveNow();

 private:
  // Reports the pending save if it has ended. With Wait::kYes, waits for its end.
  absl::Status Take(Checkpointer::Wait wait, const OnCheckpoint& on_checkpoint);
  absl::Status Report(const CheckpointReport& report, const OnCheckpoint& on_checkpoint);

  const CheckpointConfig config_;
  CheckpointSaver& saver_;
  int64_t saved_step_ = -1;   // Step of the newest checkpoint in the folder that is known to be good.
  bool save_failed_ = false;  // The last save failed, and on_failure is kStop.
};

}  // namespace shale
