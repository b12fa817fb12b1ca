#include "engine/run/train/checkpoint_policy.h"

#include "kernels/check.h"

namespace shale {

absl::Status CheckpointPolicy::AfterStep(int64_t step, bool best, absl::FunctionRef<bool()> done,
                                         const OnCheckpoint& on_checkpoint) {
  SHALE_RETURN_IF_ERROR(Take(Checkpointer::Wait::kNo, on_checkpoint));
  const int64_t every = config_.every_steps;
  const bool due = (every > 0 && step % every == 0) || (best && config_.keep_best);
  if (!due || done()) return absl::OkStatus();
  // Only one save may be pending: if saving takes longer than the interval between checkpoints, the steps wait.
  SHALE_RETURN_IF_ERROR(Take(Checkpointer::Wait::kYes, on_checkpoint));
  SHALE_RETURN_IF_ERROR(saver_.StartSave());
  // A synchronous save has ended by now. If it failed and on_failure is kStop, no step may follow.
  return Take(Checkpointer::Wait::kNo, on_checkpoint);
}

absl::Status CheckpointPolicy::AtEnd(int64_t step, bool intact, const OnCheckpoint& on_checkpoint) {
  SHALE_RETURN_IF_ERROR(Take(Checkpointer::Wait::kYes, on_checkpoint));
  // A run that stops because a save failed does not try again.
  if (save_failed_ || !intact || step == saved_step_) return absl::OkStatus();
  return Report(saver_.Save(), on_checkpoint);
}

absl::StatusOr<std::string> CheckpointPolicy::SaveNow() {
  SHALE_RETURN_IF_ERROR(Take(Checkpointer::Wait::kYes, {}));
  const CheckpointReport report = saver_.Save();
  if (!report.status.ok()) return report.status;
  SetSaved(report.step);
  return report.path;
}

absl::Status CheckpointPolicy::Take(Checkpointer::Wait wait, const OnCheckpoint& on_checkpoint) {
  const std::optional<CheckpointReport> report = saver_.TakeSave(wait);
  if (!report) return absl::OkStatus();
  const absl::Status status = Report(*report, on_checkpoint);
  return config_.on_failure == SaveFailure::kContinue && status == report->status ? absl::OkStatus() : status;
}

absl::Status CheckpointPolicy::Report(const CheckpointReport& report, const OnCheckpoint& on_checkpoint) {
  if (report.status.ok()) {
    saved_step_ = report.step;
  } else {
    save_failed_ = config_.on_failure == SaveFailure::kStop;
  }
  if (on_checkpoint) SHALE_RETURN_IF_ERROR(on_checkpoint(report));
  return report.status;
}

}  // namespace shale
