// Session runs one job on its ranks, from the creation of the ranks to their last step.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/config/job.h"
#include "engine/config/learning_rate.h"
#include "engine/events/event.h"
#include "engine/generate/next_tokens.h"
#include "engine/generate/sampler.h"
#include "engine/memory/machine.h"
#include "engine/planner/resolve_job.h"
#include "engine/runtime/local_ranks.h"
#include "engine/runtime/profiler_ranges.h"
#include "engine/runtime/trace.h"
#include "engine/state/local_state.h"
#include "engine/state/state_digest.h"
#include "engine/train/batch_prefetcher.h"
#include "engine/train/checkpoint_policy.h"
#include "engine/train/checkpointer.h"
#include "engine/train/evaluation_history.h"
#include "engine/train/job_data.h"
#include "engine/train/reports.h"
#include "engine/train/resume.h"
#include "engine/train/trainer_options.h"

namespace shale {

// Runs steps and evaluations, and saves the state. The caller decides when. Used by one thread at a time.
//
//   running --a loss or gradient is not finite, with non_finite STOP--> failed: no step may follow
//   running --a program or StartSave returns an error--> failed and damaged: the state is not that of the last step
//   running --with several processes, this one cannot read its data--> failed and damaged: the others begin the step
class Session : public CheckpointSaver {
 public:
  // See Trainer::Create.
  static absl::StatusOr<std::unique_ptr<Session>> Create(const Job& job, const TrainerOptions& options);

  const Job& job() const { return resolved_.job; }
  const JobPlan& plan() const { return resolved_.plan; }
  const JobData& data() const { return *data_; }
  ControlPlane& control() const { return control_; }
  const Resumed& resumed() const { return resumed_; }
  const LocalState& state() const { return *state_; }
  // Return the state, to read it or to write a parameter of it. Return FailedPrecondition if a failure left it
  // unusable; for writing also if no step may follow. Writing a frozen parameter waits for a save that reads it.
  absl::StatusOr<const LocalState*> ReadableState() const;
  absl::StatusOr<LocalState*> WritableState(absl::string_view parameter);
  const StepTrace& trace() const { return trace_; }
  std::string TraceTable() const {
    return trace_.Table({.bytes_per_second = trace_options_.bytes_per_second, .flops_per_second = peak_flops_});
  }
  int64_t overhead_bytes() const { return overhead_bytes_; }
  // See the functions of Trainer with these names.
  std::string device_description() const;
  const std::string& late_memory() const { return late_memory_; }
  // Returns for each rank of this process how long it waited in the last step (BlockedNs), with its number.
  const std::vector<std::pair<int64_t, int64_t>>& waited_ns() const { return waited_ns_; }

  double peak_flops() const { return peak_flops_; }
  int64_t tokens() const { return tokens_; }  // Targets that have counted so far, as StepReport::tokens.
  int64_t steps() const { return steps_; }    // Steps done, including those before the checkpoint.
  // The evaluations that Trainer::Run made, if the job follows them (checkpoint.keep_best, checkpoint.patience).
  bool follows_evaluations() const { return job_.checkpoint.keep_best || job_.checkpoint.patience > 0; }
  EvaluationHistory& evaluations() { return evaluations_; }
  const EvaluationHistory& evaluations() const { return evaluations_; }
  bool finished() const { return steps_ >= data_->total_steps() || data_->SamplesAt(position_).count == 0; }
  bool failed() const { return failed_; }
  bool damaged() const { return damaged_; }

  // Runs one step. FailedPrecondition if the session has failed. REQUIRES: !finished().
  absl::StatusOr<StepReport> Step();
  // See Trainer::Evaluate.
  absl::StatusOr<EvaluationReport> Evaluate(int64_t sequences);
  // See Trainer::Abort.
  void Abort(const absl::Status& why) { ranks_->Abort(why); }
  // See Trainer::ReportFailure.
  absl::Status ReportFailure(const absl::Status& why);
  // See Trainer::SetLearningRate and Trainer::SetData.
  absl::Status SetLearningRate(std::optional<double> rate);
  absl::Status SetData(DataSource* data);
  // See the functions of Trainer with these names.
  absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t> context);
  absl::Status Generate(absl::Span<const int32_t> prompt, int64_t count, const SamplingOptions& sampling,
                        absl::FunctionRef<bool(int32_t)> emit);
  // See Trainer::WriteTrace.
  absl::Status WriteTrace() const;

  // Returns whether there is a folder for checkpoints. REQUIRES of the following three: saves().
  bool saves() const { return checkpointer_ != nullptr; }
  CheckpointReport Save() override;
  absl::Status StartSave() override;
  std::optional<CheckpointReport> TakeSave(Checkpointer::Wait wait) override;

  // Passes an event on to TrainerOptions::events. The session itself does so for plan, start-up and checkpoints.
  template <class What>
  void Tell(What what) const {
    if (events_ != nullptr) events_->Take({.unix_seconds = UnixSecondsNow(), .what = std::move(what)});
  }

 private:
  Session(ResolvedJob resolved, std::unique_ptr<JobData> data, LearningRateSchedule learning_rate,
          const TrainerOptions& options);
  // Gives the job its model, opens the data and resolves the job.
  static absl::StatusOr<std::unique_ptr<Session>> Prepare(Job job, const Machine& machine,
                                                          const TrainerOptions& options);
  void TellPlan() const;
  // Checks that all processes have the same job and the same data.
  absl::Status CheckSame() const;
  absl::Status CheckSameData(const std::string& name, int64_t samples) const;
  // Allocates the ranks and all that they need.
  absl::Status Allocate(const TrainerOptions& options);
  // Sets the state that training begins with: restores a checkpoint, or sets initial weights.
  absl::Status Begin(const TrainerOptions& options);
  // Sets base_ to the base of the job. `digest_of_process` is the part of its digest that the local ranks read.
  absl::Status RecordBase(uint64_t digest_of_process);
  // After a checkpoint that leaves the base out: reads it again, and refuses another one.
  absl::Status ReadBaseAgain();
  // Sets step, tokens and position to those of the checkpoint that was restored, and computes total steps and learning
  // rates anew. Saves at once if the checkpoint lies in another folder.
  absl::Status GoOnAfterCheckpoint();
  // Calls generate(next_tokens), unless the state is unusable or runtime.generate is not set.
  absl::Status WithNextTokens(absl::FunctionRef<absl::Status(NextTokens&)> generate);
  // Lets the traces of all processes count from the same time.
  absl::Status AgreeOnTraceOrigin();
  // See runtime.check_every_steps.
  bool IsChecked(int64_t step) const {
    return job_.runtime.check_every_steps > 0 && step % job_.runtime.check_every_steps == 0;
  }
  // Runs step `step`. If it is checked, sets before_update_ while the ranks pause before they update.
  absl::Status RunProgram(int64_t step, const std::vector<StepInputs>& inputs);
  // Sets `digests` to those of the state of the local ranks.
  absl::Status DigestState(Digested what, std::vector<StateDigest>& digests);
  // Compares the state after step `step`, which train_ has run, and before its update, if it is checked. All processes
  // have the error.
  absl::Status CompareReplicas(int64_t step);
  // Makes a loader of data that the program gives, if it fits. Does not start it.
  absl::StatusOr<std::unique_ptr<BatchLoader>> OpenData(DataSource* data) const;
  // Returns the error of data that cannot be read. Other processes, which can read theirs, then wait for this one in
  // the collectives of the step, so no step or save may follow.
  absl::Status WithoutData(const absl::Status& error);
  // Evaluates one of several sources. Adds its outputs to both sums.
  absl::Status EvaluateSource(const BatchLoader& loader, int64_t sequences, EvaluationSum& source, EvaluationSum& all);
  // Returns the samples of the step after the next one, or none if the next step is the last.
  StepSamples SamplesAfterNext() const;
  // Notes the step of a save that has succeeded, and tells of the save.
  void TellSaved(const CheckpointReport& report);
  // Returns the manifest of the current state, as far as the session knows it (see Checkpointer::Save).
  Manifest ManifestNow() const;

  const ResolvedJob resolved_;
  const Job& job_ = resolved_.job;
  const JobPlan& plan_ = resolved_.plan;
  const TraceOptions trace_options_;
  ControlPlane& control_;
  EventSink* const events_;  // May be null.
  const double peak_flops_;
  const double flops_per_token_;
  const std::vector<int> local_ranks_;  // TrainerOptions::ranks.
  const std::string failure_folder_;    // TrainerOptions::failure_folder.
  std::vector<int> process_of_rank_;    // By rank.
  const std::unique_ptr<JobData> data_;
  LearningRateSchedule learning_rate_;
  std::optional<double> own_learning_rate_;  // What the program set in place of the schedule.
  std::unique_ptr<BatchPrefetcher> batches_;
  int64_t overhead_bytes_ = 0;
  std::unique_ptr<LocalRanks> ranks_;
  std::unique_ptr<ProfilerRanges> ranges_;  // Null if no profiler wants them.
  std::unique_ptr<LocalProgram> train_, evaluate_;
  std::unique_ptr<Sequences> sequences_;  // Null without runtime.generate.
  std::unique_ptr<LocalState> state_;
  InstructionId first_update_ = -1;  // The first instruction that writes to the state. -1: not looked for yet.
  // By local rank: what the last update left, if the next step is checked, and what that step found before its update.
  // Empty: not known. A program that writes to the state empties the former.
  std::vector<StateDigest> left_by_update_, before_update_;
  std::unique_ptr<Checkpointer> checkpointer_;  // Null if nothing is saved.
  Resumed resumed_;
  std::optional<SavedBase> base_;  // What checkpoints leave out. Empty: they hold all parameters.
  EvaluationHistory evaluations_;
  StepTrace trace_;
  // Any thread may read these four, for the report of a failure.
  std::atomic<int64_t> steps_ = 0;
  std::atomic<int64_t> step_now_ = 0;    // The step that has begun last.
  std::atomic<int64_t> saved_step_ = 0;  // The step of the last checkpoint, 0 if there is none.
  std::atomic<bool> reported_ = false;   // A failure has been reported.
  int64_t position_ = 0;                 // Samples taken so far, over all epochs.
  int64_t tokens_ = 0;
  std::string late_memory_;
  std::vector<std::pair<int64_t, int64_t>> waited_ns_;
  std::string why_no_ranges_;  // If a profiler wants ranges, and gets none.
  int64_t steps_begun_ = 0;    // Steps that this session has begun, for TraceOptions::first_step.
  bool failed_ = false;
  bool damaged_ = false;
};

}  // namespace shale
