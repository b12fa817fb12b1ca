// Trainer: the embedding API. Trains the model of a job on the ranks of this process.
//
//   SHALE_ASSIGN_OR_RETURN(Job job, LoadJob("job.textproto", {}));
//   SHALE_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
//                          Trainer::Create(job, {.create_backend = CreateBackend,  // engine/backends/job_backend.h
//                                                .checkpoint_folder = "checkpoints",
//                                                .resume = {.from = ResumeFrom::kLatestOrStart}}));
//   SHALE_RETURN_IF_ERROR(trainer->Run({.on_step = [](const StepReport& report) { ...; return absl::OkStatus(); }}));
//
// or step by step, with Step, Evaluate and SaveCheckpoint.
//
// No globals, no signal handlers, no exit: any number of trainers may live in one process. A trainer is used by one
// thread at a time; RequestStop may be called from any. After an error from Step only destruction (and reading) may
// follow.
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
#include "engine/backends/job_backend.h"
#include "engine/config/job.h"
#include "engine/io/file_system.h"
#include "engine/planner/job_plan.h"
#include "engine/train/checkpointer.h"
#include "engine/train/resume.h"

namespace shale {

struct StepReport {
  int64_t step = 0;    // Counted from 1.
  int64_t tokens = 0;  // Valid target tokens so far, over all ranks and steps.
  int64_t step_tokens = 0;
  double loss = 0;           // Mean over the valid tokens of the global batch; 0 when there are none.
  double gradient_norm = 0;  // Before clipping.
  double learning_rate = 0;
  bool updated = true;  // False: nothing was valid, or something was not finite and the step was skipped.
  double seconds = 0;
  double tokens_per_second = 0;
  double mfu = 0;                   // Of peak_flops x ranks; 0 when no peak is known.
  int64_t peak_bytes_planned = 0;   // Per rank.
  int64_t peak_bytes_measured = 0;  // Largest over the ranks, so far.
};

struct EvaluationReport {
  int64_t step = 0;  // Steps done.
  double loss = 0;   // Mean over valid tokens.
  int64_t tokens = 0;
};

// Which steps are traced, counted from the trainer's first, and where the trace goes (StepTrace::ChromeJson).
struct TraceOptions {
  std::string path;        // Empty: nothing is traced.
  int64_t first_step = 3;  // Those before pay for page faults and caches.
  int64_t steps = 2;
};

struct TrainerOptions {
  // Makes what the job runs on. Required.
  BackendFactory create_backend;
  // Peak FLOP/s of one rank, for MFU; 0: none is reported.
  double peak_flops = 0;
  // Where checkpoints go; empty: nothing is saved. The trainer holds it alone as long as it lives. `resume` says what
  // becomes of those that lie there.
  std::string checkpoint_folder;
  ResumeOptions resume;
  // A folder whose tokenizer files say which tokenizer made the tokens, besides their encoding; empty: none.
  std::string tokenizer_folder;
  TraceOptions trace;
  FileSystem* files = &PosixFileSystem();  // What checkpoints are written through. Borrowed.
};

// What Run tells of; called on its thread, between steps. An error ends the run and is what Run returns. May be empty.
struct TrainCallbacks {
  std::function<absl::Status(const StepReport&)> on_step;
  std::function<absl::Status(const EvaluationReport&)> on_evaluation;
  std::function<absl::Status(const CheckpointReport&)> on_checkpoint;  // Also of one that failed.
};

class Trainer {
 public:
  // Plans the job, refuses it if it does not fit, opens the data, allocates, and restores a checkpoint, reads
  // job.hf_folder or initialises the weights.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const Job& job, const TrainerOptions& options);
  ~Trainer();

  // The job with everything decided: vocabulary, schedule, steps.
  const Job& job() const;
  const JobPlan& plan() const;
  // Which checkpoint it went on from, if any.
  const Resumed& resumed() const;
  // Resident memory of the process outside the arenas, as measured just before they were allocated: code, libraries,
  // data buffers, whatever else the process holds.
  int64_t overhead_bytes() const;
  // What it runs on, in words (Backend::Describe); empty where that is the machine itself.
  const std::string& device_description() const;
  int64_t total_steps() const;
  int64_t steps_done() const;
  // All steps done, or a stop was requested.
  bool done() const;

  // One optimizer step on the next global batch. FailedPrecondition: done(), or an earlier one failed.
  absl::StatusOr<StepReport> Step();
  // The loss on evaluation data, at most `batches` micro-batches per rank. FailedPrecondition: there is none.
  absl::StatusOr<EvaluationReport> Evaluate(int64_t batches);
  bool has_evaluation_data() const;
  // Steps until done(), and evaluates every telemetry.evaluate_every steps and after the last one. A run that was told
  // to stop does so without another pass over evaluation data. With a checkpoint folder it saves as job.checkpoint
  // says, and, however it ends, the last state that is good; the error of that save is returned if there is no other.
  absl::Status Run(const TrainCallbacks& callbacks);

  // Saves the state after the last step, and returns when the checkpoint is committed: its path. FailedPrecondition
  // without a checkpoint folder, or when a failure left the state unusable.
  absl::StatusOr<std::string> SaveCheckpoint();

  // Writes what was traced so far to TraceOptions::path. Run does so at its end. FailedPrecondition: nothing was
  // traced.
  absl::Status WriteTrace() const;
  // The same as a table (StepTrace::Table); empty if nothing was traced.
  std::string TraceTable() const;

  // No step begins after this. Safe in any thread, and in a signal handler.
  void RequestStop();

  // The trained weights as fp32 (masters where there are any), by parameter name; `values` has all its elements.
  absl::Status ReadParameter(absl::string_view name, absl::Span<float> values) const;
  absl::Status WriteParameter(absl::string_view name, absl::Span<const float> values);
  // The reduced gradient of the last step, before clipping.
  absl::Status ReadGradient(absl::string_view name, absl::Span<float> values) const;
  const std::vector<Parameter>& parameters() const;

 private:
  class Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace shale
