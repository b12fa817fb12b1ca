#include "engine/train/trainer.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "engine/config/parse.h"
#include "engine/config/print.h"
#include "engine/hugging_face/config.h"
#include "engine/hugging_face/weights.h"
#include "engine/io/file.h"
#include "engine/planner/explain.h"
#include "engine/runtime/local_ranks.h"
#include "engine/runtime/trace.h"
#include "engine/state/initial_values.h"
#include "engine/state/local_state.h"
#include "engine/train/job_data.h"
#include "engine/train/learning_rate.h"

namespace shale {
namespace {

// Returns the resident memory of this process; 0 if the system does not tell.
int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// The job's enums for curves and scaling rules have the same values in the same order as those of LearningRateOptions.
static_assert(static_cast<int>(CurveShape::kWarmupStableDecay) ==
              static_cast<int>(LearningRateShape::kWarmupStableDecay));
static_assert(static_cast<int>(ScalingRule::kSquareRoot) == static_cast<int>(LearningRateScaling::kSquareRoot));

LearningRateOptions LearningRateFor(const Job& job, int64_t total_steps) {
  const LearningRateConfig& c = job.lr_schedule;
  LearningRateOptions options;
  options.shape = static_cast<LearningRateShape>(c.shape);
  options.peak = job.optimizer.learning_rate;
  options.steps = total_steps;
  if (c.warmup_steps > 0) {
    options.warmup = c.warmup_steps;
  } else if (c.warmup_samples > 0) {
    options.warmup = c.warmup_samples;
    options.warmup_unit = WarmupUnit::kSamples;
  } else if (c.warmup_tokens > 0) {
    options.warmup = c.warmup_tokens;
    options.warmup_unit = WarmupUnit::kTokens;
  }
  options.final_fraction = c.final_fraction;
  options.decay_fraction = c.decay_fraction;
  options.scaling = static_cast<LearningRateScaling>(job.optimizer.scaling);
  options.base_batch = job.optimizer.base_batch;
  options.global_batch = job.batch.global_batch;
  options.sequence_length = job.batch.sequence_length;
  return options;
}

}  // namespace

class Trainer::Impl {
 public:
  absl::Status Create(Job job, const TrainerOptions& options) {
    job_ = std::move(job);
    options_ = options;
    SHALE_ASSIGN_OR_RETURN(data_, JobData::Open(job_, options_.tokenizer_folder));
    SHALE_RETURN_IF_ERROR(ValidateJob(job_));
    SHALE_RETURN_IF_ERROR(MakeLearningRate());
    job_.memory.loss_chunk_tokens = LossChunkTokens(job_);
    if (!options_.create_backend) return absl::InvalidArgumentError("TrainerOptions.create_backend is missing");
    SHALE_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, options_.create_backend(job_));
    SHALE_ASSIGN_OR_RETURN(plan_, PlanJob(job_, backend->machine()));
    job_.runtime.threads_per_rank = ThreadsPerRank(job_.runtime, job_.sharding.ranks);
    job_.sharding.accumulation = plan_.options.accumulation;
    batch_ = std::make_unique<HostBatch>(data_->training(), plan_.options.micro_batches);
    overhead_bytes_ = ResidentBytes();
    SHALE_ASSIGN_OR_RETURN(ranks_,
                           LocalRanks::Create(*backend,
                                              {.mesh = plan_.options.mesh,
                                               .synchronous = job_.runtime.synchronous,
                                               .programs = {&plan_.train.step.program, &plan_.evaluate.step.program},
                                               .host_memory = plan_.host_memory},
                                              plan_.arena_bytes));
    const ExecutorOptions executor{.synchronous = job_.runtime.synchronous, .graphs = job_.runtime.graphs};
    SHALE_ASSIGN_OR_RETURN(train_,
                           LocalProgram::Create(*ranks_, plan_.train.step.program, plan_.train.memory, executor));
    SHALE_ASSIGN_OR_RETURN(evaluate_,
                           LocalProgram::Create(*ranks_, plan_.evaluate.step.program, plan_.evaluate.memory, executor));
    state_ = std::make_unique<LocalState>(plan_.train.graph, plan_.train.step.state, plan_.train.memory, *ranks_);
    flops_per_token_ = ModelFlopsPerToken(job_, plan_.train.graph);
    if (!options_.checkpoint_folder.empty()) {
      SHALE_ASSIGN_OR_RETURN(checkpointer_, Checkpointer::Create(plan_, *ranks_, *state_, options_.checkpoint_folder,
                                                                 {.keep_last = job_.checkpoint.keep_last,
                                                                  .keep_every = job_.checkpoint.keep_every,
                                                                  .files = options_.files}));
    }
    return Begin();
  }

  absl::StatusOr<StepReport> Step() {
    if (!failed_ && done())
      return absl::FailedPreconditionError("the run is over: no step is left, or a stop was requested");
    return RunStep();
  }

  // Runs a step without a look at stop_: a stop that is requested from now on takes effect after this step.
  absl::StatusOr<StepReport> RunStep() {
    if (failed_) return absl::FailedPreconditionError("an earlier step failed; this trainer cannot go on");
    const auto start = std::chrono::steady_clock::now();
    const double learning_rate = learning_rate_->At(steps_);
    SHALE_ASSIGN_OR_RETURN(std::vector<StepInputs> inputs, batch_->Fill(data_->SamplesAt(position_)));
    for (StepInputs& in : inputs) {
      in.hyper[kHyperLearningRate] = static_cast<float>(learning_rate);
      in.hyper[kHyperMaxNorm] = static_cast<float>(job_.optimizer.max_gradient_norm);
    }
    const int64_t traced = ++steps_begun_ - options_.trace.first_step;
    const bool tracing = !options_.trace.path.empty() && traced >= 0 && traced < options_.trace.steps;
    train_->SetTracing(tracing);
    if (absl::Status status = train_->Run(inputs); !status.ok()) {
      failed_ = damaged_ = true;
      return status;
    }
    for (int local = 0; tracing && local < ranks_->size(); ++local) {
      trace_.Add(plan_.train.step.program, steps_ + 1, (*ranks_)[local].rank(), train_->times(local));
    }
    const StepOutputs& out = train_->outputs(0);
    const bool finite = out.totals[kTotalNonFinite] == 0;
    if (!finite && job_.optimizer.non_finite == NonFinite::kStop) {
      failed_ = true;
      return absl::DataLossError(
          absl::StrCat("step ", steps_ + 1, ": the loss or the gradient is not finite (on ",
                       out.totals[kTotalNonFinite], " of ", job_.sharding.ranks,
                       " ranks); the update was not applied. Lower optimizer.learning_rate, or set "
                       "optimizer.non_finite=SKIP to skip such steps"));
    }
    position_ += data_->SamplesAt(position_).count;
    ++steps_;
    tokens_ += out.global_tokens;

    StepReport report;
    report.step = steps_;
    report.tokens = tokens_;
    report.step_tokens = out.global_tokens;
    report.learning_rate = learning_rate;
    report.loss = out.global_tokens > 0 ? out.totals[kTotalLoss] / static_cast<double>(out.global_tokens) : 0;
    report.gradient_norm = std::sqrt(out.totals[kTotalSquaredNorm]);
    report.updated = finite && out.global_tokens > 0;
    report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    report.tokens_per_second = static_cast<double>(out.global_tokens) / report.seconds;
    if (options_.peak_flops > 0) {
      report.mfu = report.tokens_per_second * flops_per_token_ /
                   (options_.peak_flops * static_cast<double>(job_.sharding.ranks));
    }
    report.peak_bytes_planned = plan_.arena_bytes;
    report.peak_bytes_measured = ranks_->measured_peak_bytes();
    if (!finite) report.loss = report.gradient_norm = std::nan("");
    return report;
  }

  absl::StatusOr<EvaluationReport> Evaluate(int64_t batches) {
    const BatchLoader* loader = data_->evaluation();
    if (loader == nullptr) {
      return absl::FailedPreconditionError(
          "the job has no evaluation data: set data.evaluation_path or data.evaluation_fraction");
    }
    HostBatch batch(*loader, 1);
    const int64_t per_run = job_.batch.micro_batch * job_.sharding.ranks;
    EvaluationReport report;
    report.step = steps_;
    double sum = 0;
    for (int64_t i = 0; i < batches; ++i) {
      const int64_t begin = i * per_run;
      const int64_t count = std::min(per_run, loader->samples_per_epoch() - begin);
      if (count <= 0) break;
      SHALE_ASSIGN_OR_RETURN(std::vector<StepInputs> inputs, batch.Fill({begin, count}));
      if (absl::Status status = evaluate_->Run(inputs); !status.ok()) {
        failed_ = damaged_ = true;
        return status;
      }
      sum += evaluate_->outputs(0).totals[kTotalLoss];
      report.tokens += evaluate_->outputs(0).global_tokens;
    }
    report.loss = report.tokens > 0 ? sum / static_cast<double>(report.tokens) : 0;
    return report;
  }

  // Runs the steps and everything between them.
  absl::Status Run(const TrainCallbacks& callbacks) {
    absl::Status status = RunSteps(callbacks);
    if (!trace_.empty()) status.Update(WriteTrace());
    if (checkpointer_ == nullptr) return status;
    absl::Status saved = TakeCheckpoint(callbacks, Checkpointer::Wait::kYes);
    // A run that stops because a save failed does not try again.
    const bool try_again = saved.ok() && !save_failed_;
    if (try_again && !damaged_ && steps_ != saved_step_) saved = Report(callbacks, Save());
    return status.ok() ? saved : status;
  }

  absl::StatusOr<std::string> SaveCheckpoint() {
    if (checkpointer_ == nullptr) return absl::FailedPreconditionError("the trainer was given no checkpoint folder");
    if (damaged_) return absl::FailedPreconditionError("a failure left the state unusable: it is not saved");
    SHALE_RETURN_IF_ERROR(TakeCheckpoint({}, Checkpointer::Wait::kYes));
    const CheckpointReport report = Save();
    if (!report.status.ok()) return report.status;
    return report.path;
  }

  absl::Status WriteTrace() const {
    if (trace_.empty()) return absl::FailedPreconditionError("no step was traced");
    return WriteFileDurably(options_.trace.path, trace_.ChromeJson());
  }

  const std::string& device_description() const { return ranks_->description(); }

  bool done() const {
    return stop_.load(std::memory_order_relaxed) || steps_ >= data_->total_steps() ||
           data_->SamplesAt(position_).count == 0;
  }

  Job job_;
  JobPlan plan_;
  Resumed resumed_;
  StepTrace trace_;
  std::unique_ptr<LocalState> state_;
  std::unique_ptr<JobData> data_;
  int64_t steps_ = 0;
  int64_t overhead_bytes_ = 0;
  std::atomic<bool> stop_ = false;

 private:
  // Sets the state that training begins with.
  absl::Status Begin() {
    SHALE_ASSIGN_OR_RETURN(
        resumed_,
        Resume(
            options_.resume, options_.checkpoint_folder, OneProcess(),
            [&](const Manifest& manifest) { return CheckSameRun(manifest, job_, data_->saved(), plan_.train.graph); },
            [&](const CheckpointReader& checkpoint) { return state_->Restore(checkpoint, /*values_only=*/false); }));
    if (!resumed_.path.empty()) {
      steps_ = resumed_.manifest.step;
      tokens_ = resumed_.manifest.tokens;
      position_ = resumed_.manifest.samples;
      data_->GoOnAfter(steps_, position_);
      SHALE_RETURN_IF_ERROR(MakeLearningRate());
      if (checkpointer_ == nullptr) return absl::OkStatus();
      saved_step_ = steps_;
      if (!resumed_.from_elsewhere) {
        checkpointer_->DisregardAfter(steps_);
        return absl::OkStatus();
      }
      // Save at once: if the run is killed before its next save, it can go on from a checkpoint in its own folder.
      return Save().status;
    }
    if (!job_.hf_folder.empty()) return ReadHfWeights();
    const auto initial = [&](const Parameter& parameter, int64_t begin, absl::Span<float> values) {
      FillInitialValues(parameter, job_.runtime.seed, begin, values, static_cast<int>(job_.runtime.threads_per_rank));
      return absl::OkStatus();
    };
    return state_->Fill(initial);
  }

  absl::Status MakeLearningRate() {
    SHALE_ASSIGN_OR_RETURN(LearningRateSchedule accumulation,
                           LearningRateSchedule::Create(LearningRateFor(job_, data_->total_steps())));
    learning_rate_ = std::make_unique<LearningRateSchedule>(accumulation);
    return absl::OkStatus();
  }

  absl::Status ReadHfWeights() {
    SHALE_ASSIGN_OR_RETURN(const DecoderConfig config, ReadHfConfig(job_.hf_folder));
    if (const std::string difference = FirstDifference(config, job_.model); !difference.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("model.hf_folder: ", job_.hf_folder,
                                                     " holds a model that differs from the job's: ", difference,
                                                     "; leave model.decoder out to take its shape"));
    }
    SHALE_ASSIGN_OR_RETURN(const HfWeights weights, HfWeights::Open(job_.hf_folder, config));
    const auto read = [&](const Parameter& parameter, int64_t begin, absl::Span<float> values) {
      return weights.Read(parameter.name, begin, values);
    };
    return state_->Fill(read);
  }

  absl::Status RunSteps(const TrainCallbacks& callbacks) {
    const TelemetryConfig& telemetry = job_.telemetry;
    while (!done()) {
      SHALE_ASSIGN_OR_RETURN(const StepReport report, RunStep());
      if (callbacks.on_step) SHALE_RETURN_IF_ERROR(callbacks.on_step(report));
      SHALE_RETURN_IF_ERROR(CheckpointIfDue(callbacks));
      const bool last = report.step == data_->total_steps();
      const bool due = last || (telemetry.evaluate_every > 0 && report.step % telemetry.evaluate_every == 0);
      if (!due || data_->evaluation() == nullptr || (done() && !last)) continue;
      SHALE_ASSIGN_OR_RETURN(const EvaluationReport evaluation, Evaluate(telemetry.evaluation_batches));
      if (callbacks.on_evaluation) SHALE_RETURN_IF_ERROR(callbacks.on_evaluation(evaluation));
    }
    return absl::OkStatus();
  }

  // Saves if a checkpoint is due after this step. The save at the end of the run is left to Run.
  absl::Status CheckpointIfDue(const TrainCallbacks& callbacks) {
    if (checkpointer_ == nullptr) return absl::OkStatus();
    SHALE_RETURN_IF_ERROR(TakeCheckpoint(callbacks, Checkpointer::Wait::kNo));
    const int64_t every = job_.checkpoint.every_steps;
    if (every == 0 || steps_ % every != 0 || done()) return absl::OkStatus();
    // One save at a time: if the disk is slower than the interval, steps wait for it.
    SHALE_RETURN_IF_ERROR(TakeCheckpoint(callbacks, Checkpointer::Wait::kYes));
    if (absl::Status status = checkpointer_->Start(ManifestNow()); !status.ok()) {
      failed_ = damaged_ = true;
      return status;
    }
    // A save that is not asynchronous has ended: if it failed and on_failure is kStop, no step may follow.
    return TakeCheckpoint(callbacks, Checkpointer::Wait::kNo);
  }

  // Reports the pending save if it has ended. With Wait::kYes, waits for its end.
  absl::Status TakeCheckpoint(const TrainCallbacks& callbacks, Checkpointer::Wait wait) {
    const std::optional<CheckpointReport> report = checkpointer_->Take(wait);
    if (!report) return absl::OkStatus();
    const absl::Status status = Report(callbacks, *report);
    return job_.checkpoint.on_failure == SaveFailure::kContinue && status == report->status ? absl::OkStatus() : status;
  }

  CheckpointReport Save() { return checkpointer_->Save(ManifestNow()); }

  absl::Status Report(const TrainCallbacks& callbacks, const CheckpointReport& report) {
    if (report.status.ok()) {
      saved_step_ = report.step;
    } else {
      save_failed_ = job_.checkpoint.on_failure == SaveFailure::kStop;
    }
    if (callbacks.on_checkpoint) SHALE_RETURN_IF_ERROR(callbacks.on_checkpoint(report));
    return report.status;
  }

  Manifest ManifestNow() const {
    Manifest manifest;
    manifest.step = steps_;
    manifest.tokens = tokens_;
    manifest.samples = position_;
    manifest.seed = job_.runtime.seed;
    manifest.job = ResolvedJobText(job_);
    manifest.data = data_->saved();
    return manifest;
  }

  TrainerOptions options_;
  std::unique_ptr<LocalRanks> ranks_;
  std::unique_ptr<LocalProgram> train_, evaluate_;
  std::unique_ptr<Checkpointer> checkpointer_;  // Null if nothing is saved.
  std::unique_ptr<HostBatch> batch_;
  std::unique_ptr<LearningRateSchedule> learning_rate_;
  double flops_per_token_ = 0;
  int64_t position_ = 0;  // Samples taken so far, over all epochs.
  int64_t tokens_ = 0;
  int64_t saved_step_ = -1;   // Step of the newest checkpoint in the folder that is known to be good.
  int64_t steps_begun_ = 0;   // Steps that this trainer has begun.
  bool save_failed_ = false;  // The last save failed, and on_failure is kStop.
  bool failed_ = false;       // No step may follow.
  bool damaged_ = false;      // The state is not that of the last step.
};

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const Job& job, const TrainerOptions& options) {
  auto impl = std::make_unique<Impl>();
  SHALE_RETURN_IF_ERROR(impl->Create(job, options));
  return std::unique_ptr<Trainer>(new Trainer(std::move(impl)));
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;

const Job& Trainer::job() const { return impl_->job_; }
const JobPlan& Trainer::plan() const { return impl_->plan_; }
int64_t Trainer::overhead_bytes() const { return impl_->overhead_bytes_; }
const std::string& Trainer::device_description() const { return impl_->device_description(); }
const Resumed& Trainer::resumed() const { return impl_->resumed_; }
int64_t Trainer::total_steps() const { return impl_->data_->total_steps(); }
int64_t Trainer::steps_done() const { return impl_->steps_; }
bool Trainer::done() const { return impl_->done(); }
absl::StatusOr<StepReport> Trainer::Step() { return impl_->Step(); }
absl::StatusOr<EvaluationReport> Trainer::Evaluate(int64_t batches) { return impl_->Evaluate(batches); }
absl::Status Trainer::Run(const TrainCallbacks& callbacks) { return impl_->Run(callbacks); }
bool Trainer::has_evaluation_data() const { return impl_->data_->evaluation() != nullptr; }
void Trainer::RequestStop() { impl_->stop_.store(true, std::memory_order_relaxed); }
absl::StatusOr<std::string> Trainer::SaveCheckpoint() { return impl_->SaveCheckpoint(); }
absl::Status Trainer::WriteTrace() const { return impl_->WriteTrace(); }
std::string Trainer::TraceTable() const { return impl_->trace_.Table(); }
const std::vector<Parameter>& Trainer::parameters() const { return impl_->state_->parameters(); }

absl::Status Trainer::ReadParameter(absl::string_view name, absl::Span<float> values) const {
  SHALE_ASSIGN_OR_RETURN(ParameterId id, impl_->state_->Find(name, std::ssize(values)));
  return impl_->state_->Read(id, 0, values);
}

absl::Status Trainer::WriteParameter(absl::string_view name, absl::Span<const float> values) {
  SHALE_ASSIGN_OR_RETURN(ParameterId id, impl_->state_->Find(name, std::ssize(values)));
  return impl_->state_->Write(id, 0, values);
}

absl::Status Trainer::ReadGradient(absl::string_view name, absl::Span<float> values) const {
  SHALE_ASSIGN_OR_RETURN(ParameterId id, impl_->state_->Find(name, std::ssize(values)));
  return impl_->state_->ReadGradient(id, 0, values);
}

}  // namespace shale
