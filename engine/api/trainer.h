// Trainer: the embedding API. Trains the model of a job on the ranks of this process.
//
//   SHALE_ASSIGN_OR_RETURN(Job job, LoadJob("job.textproto", {}));
//   SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, CreateBackend(job));  // engine/api/backend.h
//   SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
//                          Trainer::Create(job, {.backend = backend.get(),
//                                                .checkpoint_folder = "checkpoints",
//                                                .resume = {.from = ResumeFrom::kLatestOrStart}}));
//   SHALE_RETURN_IF_ERROR(trainer->Run({.on_step = [](const StepReport& report) { ...; return absl::OkStatus(); }}));
//
// Instead of Run, a caller may use Step, Evaluate and SaveCheckpoint.
//
// A trainer has no globals, installs no signal handlers and does not call exit(), so any number of trainers may live in
// one process. One thread at a time may use a trainer; RequestStop, Abort and ReportFailure may be called from any
// thread.
//
// An error of Step or Evaluate, or of the ranks while they generate text, ends the training: a caller may then only
// read the state, call SaveCheckpoint, and destroy the trainer. Reading and saving return FailedPrecondition if the
// state is damaged. Two kinds of errors change nothing: FailedPrecondition, and with one process an error of the data.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/api/events.h"
#include "engine/api/job.h"
#include "engine/api/plan.h"
#include "engine/api/trainer_options.h"
#include "engine/api/trainer_parts.h"

namespace shale {

class Session;
class WorkTimes;  // engine/run/runtime/work_times.h

// Functions that Run calls on the caller's thread, between steps. Each may be empty. If one returns an error, Run ends
// and returns that error.
struct TrainCallbacks {
  std::function<absl::Status(const StepReport&)> on_step;
  std::function<absl::Status(const EvaluationReport&)> on_evaluation;
  std::function<absl::Status(const CheckpointReport&)> on_checkpoint;  // Also called for a save that failed.
};

class Trainer {
 public:
  // Opens the data (the files of data.path, or TrainerOptions::data), plans the job (refusing one that does not fit),
  // allocates, and sets the state: restores a checkpoint, reads job.hf_folder, or initializes the weights.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const Job& job, const TrainerOptions& options);
  ~Trainer();

  // Returns the resolved job: vocabulary, accumulation, threads and every other default are decided.
  const Job& job() const;
  const JobPlan& plan() const;
  // Returns the checkpoint that the run resumed from, if any.
  const Resumed& resumed() const;
  int64_t total_steps() const;
  int64_t steps_done() const;
  // Returns whether all steps are done, a stop was requested, or checkpoint.patience has ended the run.
  bool done() const;
  // Returns why the run has ended before its last step, if checkpoint.patience ended it, and otherwise "". Only
  // evaluations that Run makes count.
  std::string ended_early() const;
  bool has_evaluation_data() const;
  // Returns the warnings about the last step, one line for each (StepWarnings).
  const std::vector<std::string>& warnings() const;

  // The parts of the trainer. They live as long as it does.
  TrainerState& state();  // Parameters, gradients and optimizer states.
  const TrainerState& state() const;
  LiveGenerator& generator();         // Text from the weights as they are now.
  const TrainerTrace& trace() const;  // When each instruction of some steps ran.
  const TrainerDevices& devices() const;

  // Runs one optimizer step on the next global batch. Returns FailedPrecondition if done(), or if an earlier step
  // failed. Returns the error of the data if the batch cannot be read. With one process the state is then as it was;
  // with several no step can follow.
  absl::StatusOr<StepReport> Step();
  // Returns the loss on the first `sequences` sequences of the evaluation data, or on all if there are fewer; with
  // data.evaluation_sources, on as many of each source. Returns FailedPrecondition if there is no evaluation data.
  absl::StatusOr<EvaluationReport> Evaluate(int64_t sequences);
  // Runs steps until done(), and evaluates every telemetry.evaluate_every steps and after the last step of the job.
  // With a checkpoint folder it saves as job.checkpoint says. Whatever ends the run, it also saves the last good state,
  // unless a checkpoint of that step exists already. (What the program wrote into the state after that checkpoint is
  // then not saved.)
  //
  // After RequestStop there is no evaluation, unless the last step of the job has run. If that left out an evaluation
  // that was due, a run that resumes makes it first, if checkpoint.keep_best or checkpoint.patience depends on it.
  //
  // Returns the first error. Returns the error of the last save only if there is no other, and FailedPrecondition if
  // the run came to its end and trained nothing (StepWarnings::AtEnd).
  absl::Status Run(const TrainCallbacks& callbacks);
  // Saves the state after the last step. Returns the path of the checkpoint once it is committed. Returns
  // FailedPrecondition if there is no checkpoint folder, or if a failure left the state unusable.
  absl::StatusOr<std::string> SaveCheckpoint();

  // Makes done() true, so that Run ends and Step refuses. A step that has begun completes. With several processes, a
  // request in any of them takes effect in all of them after their next step. Safe to call from any thread and from a
  // signal handler.
  void RequestStop();
  // Ends the step, evaluation or generation that is running, with the error `why`. A process calls this so that it does
  // not wait for others that have ended. Only destruction may follow. Safe to call from any thread.
  void Abort(const absl::Status& why);
  // Writes what the ranks of this process did last to TrainerOptions::failure_folder, if there is one, together with
  // `why`, the error of the run. A run that fails by itself does so too. Only the first report counts. Safe to call
  // from any thread.
  absl::Status ReportFailure(const absl::Status& why);

  // Sets the learning rate of the next step and of all later ones, in place of the job's schedule. Without a value,
  // goes back to the schedule, at the place of the next step. Checkpoints do not record it: a run that resumes goes on
  // with the schedule until its program sets a rate again. StepReport::learning_rate is the rate that a step used. With
  // several processes all must set the same. Returns InvalidArgument unless `rate` is from 0 to 1000.
  absl::Status SetLearningRate(std::optional<double> rate);
  // Takes the samples of the next step and of all later ones from `data`, in the place of TrainerOptions::data: from
  // its sample 0 on, in the order that data.order says. Samples that were read ahead from the former source are
  // dropped. `data` must describe what the model and the job read, as the former source did; its number of samples may
  // differ. Borrowed; must outlive the trainer, or the next SetData. A checkpoint records its name and its place, and a
  // run resumes from it with that source as TrainerOptions::data.
  //
  // After an error the run goes on with the former source. Returns FailedPrecondition if the data is that of data.path,
  // if the length of the run is in epochs, or if no step may follow, and otherwise the errors of Create for such data.
  // With several processes all must call it.
  absl::Status SetData(DataSource* data);
  // Adds a value of the program's own, such as a reward, to the report of the next step that completes
  // (StepReport::metrics), and so to its event, to metrics.jsonl and to the sinks. A second value of the same name
  // replaces the first. Returns InvalidArgument unless `name` has 1 to 100 of the characters a-z 0-9 _ . / - and
  // `value` is finite, and ResourceExhausted for the 65th name of one step.
  absl::Status AddMetric(absl::string_view name, double value);

 private:
  friend void CollectWorkTimes(Trainer& trainer, WorkTimes& times);
  explicit Trainer(std::unique_ptr<Session> session);
  const std::unique_ptr<Session> session_;
};

}  // namespace shale
