// Session runs one job on its ranks, from the creation of the ranks to their last step. It is what Trainer does.
#pragma once

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
#include "engine/api/plan.h"
#include "engine/api/trainer.h"
#include "engine/api/trainer_options.h"
#include "engine/api/trainer_parts.h"
#include "engine/compile/memory/machine.h"
#include "engine/plan/config/job.h"
#include "engine/plan/config/learning_rate.h"
#include "engine/run/generate/next_tokens.h"
#include "engine/run/runtime/local_ranks.h"
#include "engine/run/runtime/profiler_ranges.h"
#include "engine/run/state/local_state.h"
#include "engine/run/train/batch_prefetcher.h"
#include "engine/run/train/checkpoint_policy.h"
#include "engine/run/train/checkpointer.h"
#include "engine/run/train/job_data.h"
#include "engine/run/train/reports.h"
#include "engine/run/train/run_health.h"
#include "engine/run/train/run_watch.h"
#include "engine/run/train/starting_state.h"
#include "engine/run/train/state_check.h"
#include "engine/run/train/step_contract.h"
#include "engine/run/train/step_flops.h"

namespace shale {

// The ranks of this process and the programs that run on them: what a trainer allocates.
struct RankPrograms {
  std::unique_ptr<LocalRanks> ranks;
  std::unique_ptr<ProfilerRanges> ranges;  // Null if no profiler wants them.
  std::unique_ptr<LocalProgram> train, evaluate;
  std::unique_ptr<Sequences> sequences;  // Null without runtime.generate.
  std::string why_no_ranges;             // If a profiler wants ranges, and gets none.

  // Returns a description of the devices (LocalRanks::description), with why a profiler gets no ranges.
  std::string Describe() const;
};

// Allocates the ranks and their programs. Borrows the job and its plan. `process_of_rank` has the process of each rank.
// `evaluates`: the run has evaluation data.
absl::StatusOr<RankPrograms> AllocateRanks(const ResolvedJob& resolved, std::vector<int> process_of_rank,
                                           bool evaluates, const TrainerOptions& options);

// Adds the times of the trainer's traced steps (TraceOptions), in the ranks of this process, to `times`, which it
// borrows. Traces them also if the trace has no path.
void CollectWorkTimes(Trainer& trainer, WorkTimes& times);

// Used as a Trainer is, whose functions of the same names say what these do.
class Session : public CheckpointSaver {
 public:
  static absl::StatusOr<std::unique_ptr<Session>> Create(const Job& job, const TrainerOptions& options);

  const Job& job() const { return resolved_.job; }
  const JobPlan& plan() const { return resolved_.plan; }
  const Resumed& resumed() const { return resumed_; }
  int64_t total_steps() const { return data_->total_steps(); }
  int64_t steps() const { return health_.steps().done; }
  bool done() const { return monitor_.stopped() || finished() || evaluations_.out_of_patience(); }
  std::string ended_early() const {
    return evaluations_.out_of_patience() && !finished() ? evaluations_.WhyItEnds() : "";
  }
  bool has_evaluation_data() const { return !data_->evaluations().empty(); }
  const std::vector<std::string>& warnings() const { return monitor_.warnings(); }

  TrainerState& state() { return *state_; }
  LiveGenerator& generator() { return *generator_; }
  const TrainerTrace& trace() const { return trace_; }
  const TrainerDevices& devices() const { return devices_; }
  void CollectWorkTimes(WorkTimes& times) { trace_.works_ = &times; }

  absl::StatusOr<StepReport> Step();
  absl::StatusOr<EvaluationReport> Evaluate(int64_t sequences);
  absl::Status Run(const TrainCallbacks& callbacks);
  absl::StatusOr<std::string> SaveCheckpoint();
  void RequestStop() { monitor_.RequestStop(); }
  void Abort(const absl::Status& why) { programs_.ranks->Abort(why); }
  absl::Status ReportFailure(const absl::Status& why) { return health_.Report(why); }
  absl::Status SetLearningRate(std::optional<double> rate);
  absl::Status SetData(DataSource* data);
  absl::Status AddMetric(absl::string_view name, double value) { return metrics_.Add(name, value); }

  // For CheckpointPolicy. REQUIRES: there is a folder for checkpoints.
  CheckpointReport Save() override;
  absl::Status StartSave() override;
  std::optional<CheckpointReport> TakeSave(Checkpointer::Wait wait) override;

 private:
  Session(ResolvedJob resolved, std::unique_ptr<JobData> data, LearningRateSchedule learning_rate,
          const TrainerOptions& options);

  // The start (session_start.cc).
  //
  // Gives the job its model, opens the data, decides what the job leaves to a search, and resolves the job.
  static absl::StatusOr<std::unique_ptr<Session>> Prepare(Job job, const Machine& machine,
                                                          const TrainerOptions& options);
  void TellPlan() const;
  // Checks that all processes have the same job and the same data.
  absl::Status CheckSame() const;
  absl::Status CheckSameData(const std::string& name, int64_t samples) const;
  // Allocates the ranks and all that they need. `process_of_rank` has the process of each rank.
  absl::Status Allocate(std::vector<int> process_of_rank, const TrainerOptions& options);
  // Sets the state that training begins with: restores a checkpoint, or sets initial weights.
  absl::Status Begin(const TrainerOptions& options);
  absl::Status BeginAnew();
  // Sets base_ to the base of the job. `digest_of_process` is the part of its digest that the local ranks read.
  absl::Status RecordBase(uint64_t digest_of_process);
  // After a checkpoint that leaves the base out: reads it again, and refuses another one.
  absl::Status ReadBaseAgain();
  // Sets step, tokens and position to those of the checkpoint that was restored, and computes total steps and learning
  // rates anew. Saves at once if the checkpoint lies in another folder.
  absl::Status GoOnAfterCheckpoint();

  // Between steps (session.cc).
  absl::Status RunSteps(const TrainCallbacks& callbacks);
  bool IsEvaluationDue(int64_t step) const;
  // Evaluates. Returns whether the job follows its evaluations, and this one was the best so far.
  absl::StatusOr<bool> EvaluateAndFollow(const TrainCallbacks& callbacks);
  // `best`: the evaluation after the last step is the best so far.
  absl::Status SaveIfDue(bool best, const TrainCallbacks& callbacks);
  // Returns `status` if this is the only process, and otherwise the first error of any, which all have then.
  absl::Status Everywhere(const absl::Status& status) const {
    return AgreeOnStatus(control_, ControlChannel::kSteps, status);
  }

  // Steps and evaluations (session.cc).
  //
  // Runs a step even if done(), and tells of it or of its failure.
  absl::StatusOr<StepReport> RunStep();
  absl::StatusOr<StepReport> ComputeStep();
  // Returns the inputs of the next step, with this learning rate.
  absl::StatusOr<std::vector<StepInputs>> NextInputs(double learning_rate);
  // Returns the FLOPs of attention in the documents that the local ranks have read for the next step.
  double DocumentFlops(const std::vector<StepInputs>& inputs);
  // Runs the program of the next step, and enters memory that its first run took.
  absl::Status RunProgram(const std::vector<StepInputs>& inputs);
  // Notes the loss scale that the gradients of the next step have as a factor, for those who read them.
  absl::Status NoteGradientScale();
  // Compares the step that has run with its prediction, and notes what took its time if it was traced for that.
  void CompareWithPrediction(double seconds);
  // Looks at what the next step, which has run, left: ranks that differ, numbers that are not finite.
  absl::Status CheckOutputs();
  absl::StatusOr<EvaluationReport> ComputeEvaluation(int64_t sequences);
  // Evaluates one of several sources. Adds its outputs to both sums.
  absl::Status EvaluateSource(const BatchLoader& loader, int64_t sequences, EvaluationSum& source, EvaluationSum& all);
  // Makes a loader of data that the program gives, if it fits. Does not start it.
  absl::StatusOr<std::unique_ptr<BatchLoader>> OpenData(DataSource* data) const;
  // Returns the error of data that cannot be read. Other processes, which can read theirs, then wait for this one in
  // the collectives of the step, so no step or save may follow.
  absl::Status WithoutData(const absl::Status& error);
  // Returns the samples of the step after the next one, or none if the next step is the last.
  StepSamples SamplesAfterNext() const;
  // Is called before a program writes to the state.
  void ForgetState(bool frozen);
  // Notes the step of a save that has succeeded, and tells of the save.
  void TellSaved(const CheckpointReport& report);
  // Returns the manifest of the current state, as far as the session knows it (see Checkpointer::Save).
  Manifest ManifestNow() const;

  bool saves() const { return checkpointer_ != nullptr; }
  // Whether Run keeps the history of its evaluations (checkpoint.keep_best, checkpoint.patience).
  bool follows_evaluations() const { return job_.checkpoint.keep_best || job_.checkpoint.patience > 0; }
  bool finished() const { return steps() >= data_->total_steps() || data_->SamplesAt(position_).count == 0; }

  const ResolvedJob resolved_;
  const Job& job_ = resolved_.job;
  const JobPlan& plan_ = resolved_.plan;
  ControlPlane& control_;
  RunHealth health_;
  StepFlops flops_;
  const std::vector<int> local_ranks_;  // TrainerOptions::ranks.
  const std::unique_ptr<JobData> data_;
  LearningRateSchedule learning_rate_;
  std::optional<double> own_learning_rate_;  // What the program set in place of the schedule.
  std::unique_ptr<BatchPrefetcher> batches_;
  int64_t position_ = 0;                                // Samples taken so far, over all epochs.
  int64_t tokens_ = 0;                                  // Targets that have counted so far, as StepReport::tokens.
  int64_t steps_begun_ = 0;                             // Steps that this session has begun.
  std::vector<std::pair<int64_t, int64_t>> waited_ns_;  // In the last step, by local rank: its number, and how long.
  double document_flops_ = 0;                           // DocumentFlops of the last step.

  RankPrograms programs_;
  std::unique_ptr<LocalState> local_state_;
  std::optional<StateCheck> check_;
  std::unique_ptr<Checkpointer> checkpointer_;   // Null if nothing is saved.
  std::optional<CheckpointPolicy> checkpoints_;  // Empty if nothing is saved.
  Resumed resumed_;
  std::optional<SavedBase> base_;  // What checkpoints leave out. Empty: they hold all parameters.
  EvaluationHistory evaluations_;
  StepMonitor monitor_;
  std::optional<StepContract> contract_;  // Empty without a profile of this machine.
  bool looks_ = false;                    // The current step is traced for the contract_ of some process.
  RankTimes longest_local_;               // Of the local rank that worked longest in it, if looks_.
  bool slow_ = false;                     // contract_ has a warning about the last step.
  UserMetrics metrics_;                   // For the report of the next step.

  std::unique_ptr<TrainerState> state_;
  std::unique_ptr<LiveGenerator> generator_;
  TrainerTrace trace_;
  TrainerDevices devices_;
};

}  // namespace shale
