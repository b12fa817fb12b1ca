// Trainer: the embedding API. Trains the model of a job on the ranks of this process.
//
//   SHALE_ASSIGN_OR_RETURN(Job job, LoadJob("job.textproto", {}));
//   SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, CreateBackend(job));  // engine/backends/job_backend.h
//   SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
//                          Trainer::Create(job, {.backend = backend.get(),
//                                                .checkpoint_folder = "checkpoints",
//                                                .resume = {.from = ResumeFrom::kLatestOrStart}}));
//   SHALE_RETURN_IF_ERROR(trainer->Run({.on_step = [](const StepReport& report) { ...; return absl::OkStatus(); }}));
//
// Instead of Run, a caller may use Step, Evaluate and SaveCheckpoint.
//
// A trainer has no globals, installs no signal handlers and does not call exit(), so any number of trainers may live in
// one process. One thread at a time may use a trainer; RequestStop may be called from any thread. After an error from
// Step or Evaluate, other than FailedPrecondition, a caller may only read, call SaveCheckpoint (which refuses a damaged
// state), and destroy the trainer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/config/job.h"
#include "engine/planner/job_plan.h"
#include "engine/train/checkpointer.h"
#include "engine/train/reports.h"
#include "engine/train/resume.h"
#include "engine/train/trainer_options.h"

namespace shale {

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
  // Returns the resident memory of the process outside the arenas (code, libraries, data buffers), measured just before
  // the arenas were allocated. 0 if the system does not report it.
  int64_t overhead_bytes() const;
  // Returns a description of the devices and libraries that the job runs on (Backend::Describe), with what has taken
  // the devices' memory outside the arenas; may be empty.
  std::string device_description() const;
  // After the first step, returns a line that says by how much memory taken since Create checked what was free exceeds
  // what it left free for that (Backend::late_bytes). Empty if it does not.
  const std::string& late_memory() const;
  int64_t total_steps() const;
  int64_t steps_done() const;
  // Returns whether all steps are done or a stop was requested.
  bool done() const;

  // Runs one optimizer step on the next global batch. Returns FailedPrecondition if done(), or if an earlier step
  // failed. Returns the error of the data, with the state as it was, if the batch cannot be read.
  absl::StatusOr<StepReport> Step();
  // Returns the loss on the first `sequences` sequences of the evaluation data, or on all if there are fewer. Returns
  // FailedPrecondition if there is no evaluation data.
  absl::StatusOr<EvaluationReport> Evaluate(int64_t sequences);
  bool has_evaluation_data() const;
  // Runs steps until done(), and evaluates every telemetry.evaluate_every steps and after the last step of the job.
  // After RequestStop it evaluates only if that last step has run. With a checkpoint folder it saves as job.checkpoint
  // says. Whatever ends the run, it also saves the last good state, unless a checkpoint of that step exists already;
  // changes that WriteParameter made since that checkpoint are then not saved. Returns the first error; the error of
  // the last save only if there is no other.
  absl::Status Run(const TrainCallbacks& callbacks);

  // Saves the state after the last step. Returns the path of the checkpoint once it is committed. Returns
  // FailedPrecondition if there is no checkpoint folder, or if a failure left the state unusable.
  absl::StatusOr<std::string> SaveCheckpoint();

  // Writes the trace so far to TraceOptions::path. Run calls it at its end. Returns FailedPrecondition if nothing was
  // traced.
  absl::Status WriteTrace() const;
  // Returns the trace so far as a table (StepTrace::Table); empty if nothing was traced.
  std::string TraceTable() const;

  // Makes done() true, so that Run ends and Step refuses. A step that has begun completes. With several processes, a
  // request in any of them takes effect in all of them after their next step. Safe to call from any thread and from a
  // signal handler.
  void RequestStop();

  // Read and write the trained weights of one parameter as fp32 (the masters, if there are any). `values` must have as
  // many elements as the parameter. Reading returns FailedPrecondition if ranks of other processes hold some of them.
  absl::Status ReadParameter(absl::string_view name, absl::Span<float> values) const;
  absl::Status WriteParameter(absl::string_view name, absl::Span<const float> values);
  // Reads the reduced gradient of the last step, before clipping. Returns FailedPrecondition unless the job keeps
  // gradients (memory.keep_gradients).
  absl::Status ReadGradient(absl::string_view name, absl::Span<float> values) const;
  const std::vector<Parameter>& parameters() const;

 private:
  class Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace shale
