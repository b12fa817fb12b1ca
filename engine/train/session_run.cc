// The run of a session: its steps, and what happens between them.
#include <string>

#include "engine/api/job.h"
#include "engine/train/session.h"
#include "kernels/check.h"

namespace shale {

// Runs the steps and everything between them, writes the trace, and saves the last state.
absl::Status Session::Run(const TrainCallbacks& callbacks) {
  absl::Status status = RunSteps(callbacks);
  if (!status.ok()) health_.TellFailure(status, "run");
  if (!trace_.empty()) status.Update(trace_.Write());
  if (checkpoints_) {
    status.Update(checkpoints_->AtEnd(steps(), /*intact=*/!health_.damaged(), callbacks.on_checkpoint));
  }
  if (status.ok() && (finished() || evaluations_.out_of_patience())) {
    status = monitor_.AtEnd(tokens_);
    if (!status.ok()) {
      if (control_.processes() > 1) status = Agreed(status);  // All have the same reports.
      health_.TellFailure(status, "run");
    }
  }
  if (status.ok()) {
    health_.Tell(Finished{.step = steps(), .total_steps = total_steps(), .ended_early = ended_early()});
  } else {
    health_.TellFailure(status, "checkpoint");
  }
  return status;
}

absl::Status Session::RunSteps(const TrainCallbacks& callbacks) {
  // A run that was stopped after a step has left its evaluation out, which one that goes on would have made.
  const int64_t begin = steps();
  if (!done() && follows_evaluations() && IsEvaluationDue(begin) && !evaluations_.Has(begin)) {
    SHALE_ASSIGN_OR_RETURN(const bool best, EvaluateAndFollow(callbacks));
    SHALE_RETURN_IF_ERROR(SaveIfDue(best, callbacks));
  }
  while (!done()) {
    // RunStep does not check for a stop: one that is requested from now on takes effect after this step.
    SHALE_ASSIGN_OR_RETURN(const StepReport report, RunStep());
    SHALE_RETURN_IF_ERROR(Everywhere(callbacks.on_step ? callbacks.on_step(report) : absl::OkStatus()));
    // Evaluates before it saves, because the checkpoint records the result.
    bool best = false;
    if (IsEvaluationDue(report.step) && (report.step == total_steps() || !done())) {
      SHALE_ASSIGN_OR_RETURN(best, EvaluateAndFollow(callbacks));
    }
    SHALE_RETURN_IF_ERROR(SaveIfDue(best, callbacks));
  }
  return absl::OkStatus();
}

bool Session::IsEvaluationDue(int64_t step) const {
  const int64_t every = job_.telemetry.evaluate_every;
  const bool due = step == total_steps() || (every > 0 && step > 0 && step % every == 0);
  return due && has_evaluation_data();
}

absl::StatusOr<bool> Session::EvaluateAndFollow(const TrainCallbacks& callbacks) {
  SHALE_ASSIGN_OR_RETURN(const EvaluationReport report, Evaluate(job_.telemetry.evaluation_sequences));
  const bool best = follows_evaluations() && evaluations_.Add(steps(), report.loss);
  SHALE_RETURN_IF_ERROR(Everywhere(callbacks.on_evaluation ? callbacks.on_evaluation(report) : absl::OkStatus()));
  return best;
}

absl::Status Session::SaveIfDue(bool best, const TrainCallbacks& callbacks) {
  if (!checkpoints_) return absl::OkStatus();
  const absl::Status saved = checkpoints_->AfterStep(
      steps(), best, [this] { return done(); }, callbacks.on_checkpoint);
  if (!saved.ok()) health_.TellFailure(saved, "checkpoint");
  return saved;
}

absl::StatusOr<std::string> Session::SaveCheckpoint() {
  if (!checkpoints_) return absl::FailedPreconditionError("the trainer was given no checkpoint folder");
  if (health_.damaged()) return absl::FailedPreconditionError("a failure left the state unusable: it is not saved");
  return checkpoints_->SaveNow();
}

CheckpointReport Session::Save() {
  CheckpointReport report = checkpointer_->Save(ManifestNow());
  TellSaved(report);
  return report;
}

std::optional<CheckpointReport> Session::TakeSave(Checkpointer::Wait wait) {
  std::optional<CheckpointReport> report = checkpointer_->Take(wait);
  if (report) TellSaved(*report);
  return report;
}

void Session::TellSaved(const CheckpointReport& report) {
  if (report.status.ok()) health_.steps().saved = report.step;
  health_.Tell(report);
}

absl::Status Session::StartSave() {
  const absl::Status status = checkpointer_->Start(ManifestNow());
  return status.ok() ? status : health_.Damage(status);
}

Manifest Session::ManifestNow() const {
  Manifest manifest;
  manifest.step = steps();
  manifest.tokens = tokens_;
  manifest.samples = position_;
  manifest.seed = job_.runtime.seed;
  manifest.job = ResolvedJobText(job_);
  manifest.data = data_->SavedAt(position_);
  manifest.evaluations = evaluations_.saved();
  manifest.base = base_;
  return manifest;
}

}  // namespace shale
