#include "engine/train/session.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "engine/config/print.h"
#include "engine/config/set_model.h"
#include "engine/io/file.h"
#include "engine/planner/summary.h"
#include "engine/runtime/nvtx_ranges.h"
#include "engine/train/host_batch.h"
#include "engine/train/initial_weights.h"
#include "kernels/check.h"
#include "kernels/step_scalars.h"

namespace shale {
namespace {

// Returns the resident memory of this process in bytes, or 0 if the system does not report it.
int64_t ResidentBytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

absl::Status CheckSource(const DataSource& source, const TrainerOptions& options) {
  if (source.sequential() && options.control->processes() > 1) {
    return absl::InvalidArgumentError(absl::StrCat("data \"", source.description().name,
                                                   "\": it can only be read in order, by one process; found ",
                                                   options.control->processes(), " processes"));
  }
  if (!source.has_state() && !options.checkpoint_folder.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("data \"", source.description().name,
                     "\": callbacks save and restore are missing, which checkpoints need; give both, or no "
                     "TrainerOptions.checkpoint_folder"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Create(const Job& job, const TrainerOptions& options) {
  absl::StatusOr<std::unique_ptr<Session>> session = Prepare(job, options);
  const auto agree = [&](const absl::Status& status) {
    return AgreeOnStatus(*options.control, ControlChannel::kSteps, status);
  };
  SHALE_RETURN_IF_ERROR(agree(session.status()));
  SHALE_RETURN_IF_ERROR((*session)->CheckSame());
  (*session)->TellPlan();
  (*session)->Tell(Progress{StartStage::kAllocating});
  SHALE_RETURN_IF_ERROR(agree((*session)->Allocate(options)));
  SHALE_RETURN_IF_ERROR((*session)->Begin(options));
  return session;
}

absl::StatusOr<std::unique_ptr<Session>> Session::Prepare(Job job, const TrainerOptions& options) {
  if (options.backend == nullptr) return absl::InvalidArgumentError("TrainerOptions.backend is missing");
  if (options.model) SHALE_RETURN_IF_ERROR(SetModel(*options.model, job));
  SHALE_ASSIGN_OR_RETURN(
      std::unique_ptr<JobData> data,
      JobData::Open(job, options.tokenizer_folder, {.training = options.data, .evaluation = options.evaluation_data}));
  SHALE_RETURN_IF_ERROR(CheckSource(data->training().source(), options));
  SHALE_ASSIGN_OR_RETURN(LearningRateSchedule learning_rate,
                         LearningRateSchedule::Create(LearningRateOptionsFor(job, data->total_steps())));
  SHALE_ASSIGN_OR_RETURN(ResolvedJob resolved, ResolveJob(job, data->facts(), options.backend->machine()));
  SHALE_RETURN_IF_ERROR(data->FitTo(NeedsOf(resolved.plan.train.graph)));
  return absl::WrapUnique(new Session(std::move(resolved), std::move(data), learning_rate, options));
}

absl::Status Session::CheckSame() const {
  if (control_.processes() == 1) return absl::OkStatus();
  SHALE_RETURN_IF_ERROR(CheckSameEverywhere(control_, ControlChannel::kSteps, "the job", ResolvedJobText(job_)));
  const SavedData& data = data_->saved();
  return CheckSameEverywhere(control_, ControlChannel::kSteps, "the data",
                             absl::StrCat(data.samples_per_epoch, " samples of \"", data.tokenizer, "\""));
}

Session::Session(ResolvedJob resolved, std::unique_ptr<JobData> data, LearningRateSchedule learning_rate,
                 const TrainerOptions& options)
    : resolved_(std::move(resolved)),
      trace_options_(options.trace),
      control_(*options.control),
      events_(options.events),
      peak_flops_(options.peak_flops),
      flops_per_token_(ModelFlopsPerToken(job_, plan_.train.graph)),
      local_ranks_(options.ranks),
      data_(std::move(data)),
      learning_rate_(learning_rate) {}

absl::Status Session::Allocate(const TrainerOptions& options) {
  const Backend* backend = options.backend;
  SHALE_ASSIGN_OR_RETURN(batches_,
                         BatchPrefetcher::Create(data_->training(), plan_.options.micro_batches, local_ranks_));
  overhead_bytes_ = ResidentBytes();
  SHALE_ASSIGN_OR_RETURN(ranks_, LocalRanks::Create(*backend,
                                                    {.mesh = plan_.options.mesh,
                                                     .ranks = local_ranks_,
                                                     .synchronous = job_.runtime.synchronous,
                                                     .programs = {{plan_.train.step.program, plan_.train.memory},
                                                                  {plan_.evaluate.step.program, plan_.evaluate.memory}},
                                                     .host_memory = plan_.host_memory},
                                                    plan_.arena_bytes));
  if (job_.telemetry.nvtx) {
    SHALE_ASSIGN_OR_RETURN(ranges_, CreateNvtxRanges());
  } else if (ProfilerWantsNvtxRanges()) {
    // A program without NVTX trains under a profiler all the same.
    if (absl::StatusOr<std::unique_ptr<ProfilerRanges>> ranges = CreateNvtxRanges(); ranges.ok()) {
      ranges_ = *std::move(ranges);
    } else {
      why_no_ranges_ = absl::StrCat("the profiler gets no ranges: ", ranges.status().message());
    }
  }
  ExecutorOptions executor{
      .synchronous = job_.runtime.synchronous, .graphs = job_.runtime.graphs, .ranges = ranges_.get()};
  SHALE_ASSIGN_OR_RETURN(train_, LocalProgram::Create(*ranks_, plan_.train.step.program, plan_.train.memory, executor));
  executor.graphs = executor.graphs && data_->evaluation() != nullptr;  // Graphs that never run would take memory.
  SHALE_ASSIGN_OR_RETURN(evaluate_,
                         LocalProgram::Create(*ranks_, plan_.evaluate.step.program, plan_.evaluate.memory, executor));
  ranks_->EnterMemory("graphs");
  state_ = std::make_unique<LocalState>(plan_.train.graph, plan_.train.step.state, plan_.train.memory, *ranks_);
  if (options.checkpoint_folder.empty()) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(checkpointer_, Checkpointer::Create(plan_, *ranks_, *state_, options.checkpoint_folder,
                                                             {.keep_last = job_.checkpoint.keep_last,
                                                              .keep_every = job_.checkpoint.keep_every,
                                                              .files = options.files},
                                                             control_));
  return absl::OkStatus();
}

std::string Session::device_description() const {
  const std::string devices = ranks_->description();
  return absl::StrCat(devices, devices.empty() || why_no_ranges_.empty() ? "" : "\n", why_no_ranges_);
}

absl::Status Session::Begin(const TrainerOptions& options) {
  SHALE_ASSIGN_OR_RETURN(resumed_, Resume(
                                       options.resume, options.checkpoint_folder, control_,
                                       [&](const Manifest& manifest) {
                                         return CheckSameRun(manifest, job_, data_->saved(), plan_.train.graph);
                                       },
                                       [&](const CheckpointReader& checkpoint) {
                                         Tell(Progress{StartStage::kRestoring});
                                         return state_->Restore(checkpoint, /*values_only=*/false);
                                       }));
  for (const std::string& reason : resumed_.passed_over) Tell(Warning{absl::StrCat("skipped: ", reason)});
  const bool resumes = !resumed_.path.empty();
  const SavedData& saved = resumed_.manifest.data;
  SHALE_RETURN_IF_ERROR(
      AgreeOnStatus(control_, ControlChannel::kSteps,
                    data_->Start(resumes ? resumed_.manifest.samples : 0, resumes ? &saved.source_state : nullptr)));
  if (!resumes) {
    Tell(Progress{StartStage::kLoading});
    return AgreeOnStatus(control_, ControlChannel::kSteps, SetInitialWeights(job_, *state_));
  }
  return GoOnAfterCheckpoint();
}

absl::Status Session::GoOnAfterCheckpoint() {
  steps_ = resumed_.manifest.step;
  tokens_ = resumed_.manifest.tokens;
  position_ = resumed_.manifest.samples;
  data_->GoOnAfter(steps_, position_);
  SHALE_ASSIGN_OR_RETURN(learning_rate_,
                         LearningRateSchedule::Create(LearningRateOptionsFor(job_, data_->total_steps())));
  if (!saves()) return absl::OkStatus();
  // If the checkpoint lies elsewhere, save at once: a run that is killed before its next save can then resume from a
  // checkpoint in its own folder.
  if (resumed_.from_elsewhere) return Save().status;
  checkpointer_->DisregardAfter(steps_);
  return absl::OkStatus();
}

void Session::TellPlan() const {
  if (events_ == nullptr) return;
  Tell(PlanReady{.name = job_.name,
                 .parameters = CountParameters(plan_.train.graph),
                 .ranks = job_.sharding.ranks,
                 .accumulation_steps = plan_.options.micro_batches,
                 .total_steps = data_->total_steps(),
                 .arena_bytes = plan_.arena_bytes,
                 .host_arena_bytes = plan_.host_memory.total_bytes()});
}

absl::StatusOr<StepReport> Session::Step() {
  if (failed_) return absl::FailedPreconditionError("an earlier step failed; this trainer cannot go on");
  const auto start = std::chrono::steady_clock::now();
  const double learning_rate = learning_rate_.At(steps_);
  SHALE_ASSIGN_OR_RETURN(std::vector<StepInputs> inputs,
                         batches_->Take(data_->SamplesAt(position_), SamplesAfterNext()));
  for (StepInputs& in : inputs) {
    in.hyper[kHyperLearningRate] = static_cast<float>(learning_rate);
    in.hyper[kHyperMaxNorm] = static_cast<float>(job_.optimizer.max_gradient_norm);
  }
  if (steps_begun_ == 0) Tell(Progress{StartStage::kFirstStep});
  const int64_t traced = ++steps_begun_ - trace_options_.first_step;
  const bool tracing = !trace_options_.path.empty() && traced >= 0 && traced < trace_options_.steps;
  train_->SetTracing(tracing);
  if (absl::Status status = train_->Run(inputs); !status.ok()) {
    failed_ = damaged_ = true;
    return status;
  }
  if (steps_begun_ == 1) {
    ranks_->EnterMemory("the first step");
    late_memory_ = ranks_->LateMemory();
    if (!late_memory_.empty()) Tell(Warning{late_memory_});
  }
  for (int local = 0; tracing && local < ranks_->size(); ++local) {
    trace_.Add(plan_.train.step.program, steps_ + 1, ranks_->number(local), train_->times(local));
  }
  const StepOutputs& out = train_->outputs(0);
  if (!IsFinite(out) && job_.optimizer.non_finite == NonFinite::kStop) {
    failed_ = true;
    // On a hybrid mesh the flag is the largest of a row, not a count of ranks: see [Note: totals over a mesh].
    const bool hybrid = plan_.options.mesh.replicate > 1;
    return absl::DataLossError(
        absl::StrCat("step ", steps_ + 1, ": the loss or the gradient is not finite (on ", hybrid ? "at least " : "",
                     out.totals[kTotalNonFinite], " of ", job_.sharding.ranks,
                     " ranks); the update was not applied. Lower optimizer.learning_rate, or set "
                     "optimizer.non_finite=SKIP to skip such steps"));
  }
  position_ += data_->SamplesAt(position_).count;
  ++steps_;
  tokens_ += out.global_tokens;
  return MakeStepReport(out,
                        {.step = steps_,
                         .tokens = tokens_,
                         .learning_rate = learning_rate,
                         .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
                         .ranks = job_.sharding.ranks,
                         .flops_per_token = flops_per_token_,
                         .peak_flops = peak_flops_,
                         .peak_bytes_planned = plan_.arena_bytes,
                         .peak_bytes_measured = ranks_->measured_peak_bytes(),
                         .target_weights = plan_.train.graph.target_weights});
}

absl::StatusOr<EvaluationReport> Session::Evaluate(int64_t sequences) {
  const BatchLoader* loader = data_->evaluation();
  if (loader == nullptr) {
    return absl::FailedPreconditionError(
        "the job has no evaluation data: set data.evaluation_path or data.evaluation_fraction");
  }
  HostBatch batch(*loader, 1, local_ranks_);
  const int64_t per_run = job_.batch.micro_batch * job_.sharding.ranks;
  const int64_t end = std::min(sequences, loader->samples_per_epoch());
  EvaluationSum sum(plan_.evaluate.graph.target_weights);
  for (int64_t begin = 0; begin < end; begin += per_run) {
    SHALE_ASSIGN_OR_RETURN(std::vector<StepInputs> inputs, batch.Fill({begin, std::min(per_run, end - begin)}));
    if (absl::Status status = evaluate_->Run(inputs); !status.ok()) {
      failed_ = damaged_ = true;
      return status;
    }
    sum.Add(evaluate_->outputs(0));
  }
  return sum.Report(steps_);
}

absl::Status Session::WriteTrace() const {
  if (trace_.empty()) return absl::FailedPreconditionError("no step was traced");
  return WriteFileDurably(trace_options_.path, trace_.ChromeJson());
}

CheckpointReport Session::Save() {
  CheckpointReport report = checkpointer_->Save(ManifestNow());
  Tell(report);
  return report;
}

std::optional<CheckpointReport> Session::TakeSave(Checkpointer::Wait wait) {
  std::optional<CheckpointReport> report = checkpointer_->Take(wait);
  if (report) Tell(*report);
  return report;
}

absl::Status Session::StartSave() {
  absl::Status status = checkpointer_->Start(ManifestNow());
  if (!status.ok()) failed_ = damaged_ = true;
  return status;
}

StepSamples Session::SamplesAfterNext() const {
  if (steps_ + 1 >= data_->total_steps()) return {};
  return data_->SamplesAt(position_ + data_->SamplesAt(position_).count);
}

Manifest Session::ManifestNow() const {
  Manifest manifest;
  manifest.step = steps_;
  manifest.tokens = tokens_;
  manifest.samples = position_;
  manifest.seed = job_.runtime.seed;
  manifest.job = ResolvedJobText(job_);
  manifest.data = data_->SavedAt(position_);
  return manifest;
}

}  // namespace shale
