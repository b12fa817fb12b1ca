#include "engine/train/session.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/config/print.h"
#include "engine/io/file.h"
#include "engine/runtime/blocked_time.h"
#include "engine/train/failure_report.h"
#include "engine/train/host_batch.h"
#include "kernels/check.h"
#include "kernels/step_scalars.h"

namespace shale {

std::string Session::device_description() const {
  const std::string devices = ranks_->description();
  return absl::StrCat(devices, devices.empty() || why_no_ranges_.empty() ? "" : "\n", why_no_ranges_);
}

absl::StatusOr<const LocalState*> Session::ReadableState() const {
  if (damaged_) return absl::FailedPreconditionError("a failure left the state unusable: it cannot be read");
  return state_.get();
}

absl::StatusOr<LocalState*> Session::WritableState(absl::string_view parameter) {
  if (damaged_) return absl::FailedPreconditionError("a failure left the state unusable: it cannot be written");
  if (failed_) return absl::FailedPreconditionError("an earlier step failed, and no step can use what is written");
  const std::vector<Parameter>& parameters = state_->parameters();
  const auto written = [&](const Parameter& each) { return each.name == parameter; };
  const auto found = std::find_if(parameters.begin(), parameters.end(), written);
  if (found != parameters.end() && found->frozen) {
    if (saves()) checkpointer_->WaitForWriting();
    base_.reset();  // The frozen weights are no longer those of the folder.
  }
  left_by_update_.clear();
  return state_.get();
}

absl::Status Session::SetLearningRate(std::optional<double> rate) {
  constexpr double kMost = 1000;  // As optimizer.learning_rate.
  if (rate && !(*rate >= 0 && *rate <= kMost)) {
    return absl::InvalidArgumentError(absl::StrCat("the learning rate is ", *rate, "; allowed: 0 to ", kMost));
  }
  own_learning_rate_ = rate;
  return absl::OkStatus();
}

absl::Status Session::SetData(DataSource* data) {
  const auto agree = [&](const absl::Status& status) {
    return AgreeOnStatus(control_, ControlChannel::kSteps, status);
  };
  batches_->WaitForRead();  // `data` may be the source that is read ahead.
  absl::StatusOr<std::unique_ptr<BatchLoader>> loader = OpenData(data);
  SHALE_RETURN_IF_ERROR(agree(loader.status()));
  const DataDescription& description = data->description();
  if (control_.processes() > 1) SHALE_RETURN_IF_ERROR(CheckSameData(description.name, description.samples));
  absl::StatusOr<std::unique_ptr<BatchPrefetcher>> batches =
      BatchPrefetcher::Create(**loader, plan_.options.micro_batches, local_ranks_);
  SHALE_RETURN_IF_ERROR(agree(batches.ok() ? (*loader)->Start(0, nullptr) : batches.status()));
  batches_ = *std::move(batches);  // Borrows the loader, as the former one borrowed the former loader.
  data_->GoOnWith(*std::move(loader), position_);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BatchLoader>> Session::OpenData(DataSource* data) const {
  if (failed_) return absl::FailedPreconditionError("an earlier step failed, and no step can use other data");
  if (data == nullptr) return absl::InvalidArgumentError("SetData was given no data");
  SHALE_RETURN_IF_ERROR(CheckSource(*data, control_.processes(), saves()));
  return data_->OpenOther(job_, NeedsOf(plan_.train.graph), *data);
}

absl::StatusOr<StepReport> Session::Step() {
  if (failed_) return absl::FailedPreconditionError("an earlier step failed; this trainer cannot go on");
  const auto start = std::chrono::steady_clock::now();
  const double learning_rate = own_learning_rate_.value_or(learning_rate_.At(steps_));
  absl::StatusOr<std::vector<StepInputs>> inputs = batches_->Take(data_->SamplesAt(position_), SamplesAfterNext());
  if (!inputs.ok()) return WithoutData(inputs.status());
  for (StepInputs& in : *inputs) {
    in.hyper[kHyperLearningRate] = static_cast<float>(learning_rate);
    in.hyper[kHyperMaxNorm] = static_cast<float>(job_.optimizer.max_gradient_norm);
  }
  step_now_ = steps_ + 1;
  if (steps_begun_ == 0) Tell(Progress{StartStage::kFirstStep});
  const int64_t traced = ++steps_begun_ - trace_options_.first_step;
  const bool tracing = !trace_options_.path.empty() && traced >= 0 && traced < trace_options_.steps;
  train_->SetTracing(tracing);
  if (tracing && trace_.empty() && control_.processes() > 1) SHALE_RETURN_IF_ERROR(AgreeOnTraceOrigin());
  waited_ns_.clear();
  for (RankRuntime* rank : ranks_->runtimes()) waited_ns_.emplace_back(rank->rank(), -BlockedNs(*rank));
  if (absl::Status status = RunProgram(steps_ + 1, *inputs); !status.ok()) {
    failed_ = damaged_ = true;
    return status;
  }
  for (int local = 0; local < ranks_->size(); ++local) waited_ns_[local].second += BlockedNs((*ranks_)[local]);
  if (steps_begun_ == 1) {
    ranks_->EnterMemory("the first step");
    late_memory_ = ranks_->LateMemory();
    if (!late_memory_.empty()) Tell(Warning{late_memory_});
  }
  for (int local = 0; tracing && local < ranks_->size(); ++local) {
    trace_.Add(plan_.train.step.program, steps_ + 1, ranks_->number(local), train_->times(local));
  }
  const StepOutputs& out = train_->outputs(0);
  const bool stops = !IsFinite(out) && job_.optimizer.non_finite == NonFinite::kStop;
  // Before a number that is not finite ends the run: the bits of a rank that computes wrongly may be its cause.
  if (job_.runtime.check_every_steps > 0 && (stops || IsChecked(steps_ + 1) || IsChecked(steps_ + 2))) {
    if (const absl::Status equal = CompareReplicas(steps_ + 1); !equal.ok()) {
      failed_ = damaged_ = true;
      return equal;
    }
  }
  if (stops) {
    failed_ = true;
    // The ranks look at their shards of the gradient after it is summed over all of them, so that where a number was
    // computed wrongly is not known.
    const int64_t ranks = job_.sharding.ranks;
    const absl::Status error = absl::DataLossError(absl::StrCat(
        "step ", steps_ + 1, ": the loss or the gradient is not finite",
        ranks > 1 ? absl::StrCat(" in the sum over ", ranks, " ranks, to which any of them may have brought it") : "",
        "; the update was not applied. Lower optimizer.learning_rate, or set optimizer.non_finite=SKIP to skip such "
        "steps"));
    return control_.processes() > 1 ? Agreed(error) : error;
  }
  const int64_t samples = data_->SamplesAt(position_).count;
  position_ += samples;
  ++steps_;
  tokens_ += out.global_tokens;
  const StepReport report =
      MakeStepReport(out, {.step = steps_,
                           .tokens = tokens_,
                           .processed_tokens = samples * job_.batch.sequence_length,
                           .learning_rate = learning_rate,
                           .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
                           .ranks = job_.sharding.ranks,
                           .flops_per_token = flops_per_token_,
                           .peak_flops = peak_flops_,
                           .peak_bytes_planned = plan_.arena_bytes,
                           .peak_bytes_measured = ranks_->measured_peak_bytes(),
                           .target_weights = plan_.train.graph.target_weights});
  // Whoever kills the process after the traced steps has their trace. Run writes it once more, and reports errors.
  if (tracing && traced + 1 == trace_options_.steps && control_.processes() == 1) WriteTrace().IgnoreError();
  return report;
}

absl::Status Session::AgreeOnTraceOrigin() {
  constexpr int64_t kMostBytes = 256;
  constexpr char kBoot[] = "/proc/sys/kernel/random/boot_id";
  // Processes on one host have one steady clock. Others hear of the time of process 0 about as late as the network is.
  const auto now = [] { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  const std::string host = ReadFile(kBoot, kMostBytes).value_or(absl::StrCat("process ", control_.process()));
  SHALE_ASSIGN_OR_RETURN(const std::string message,
                         control_.Broadcast(ControlChannel::kSteps, absl::StrCat(now(), " ", host)));
  int64_t origin = now();
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(message, absl::MaxSplits(' ', 1));
  if (parts.second == host && !absl::SimpleAtoi(parts.first, &origin)) {
    return absl::InternalError("process 0 sent no time");
  }
  trace_.SetOrigin(origin);
  return absl::OkStatus();
}

absl::Status Session::ReportFailure(const absl::Status& why) {
  if (failure_folder_.empty() || reported_.exchange(true)) return absl::OkStatus();
  SHALE_RETURN_IF_ERROR(MakeFolders(failure_folder_));
  return WriteFileDurably(
      FailureReportPath(failure_folder_, control_.process()),
      FailureReport(*ranks_, control_.process(),
                    {.step = std::max<int64_t>(step_now_, steps_), .done = steps_, .saved = saved_step_}, why));
}

absl::Status Session::WithoutData(const absl::Status& error) {
  if (control_.processes() > 1) failed_ = damaged_ = true;
  return error;
}

absl::StatusOr<EvaluationReport> Session::Evaluate(int64_t sequences) {
  if (data_->evaluations().empty()) {
    return absl::FailedPreconditionError(
        "the job has no evaluation data: set data.evaluation_path, data.evaluation_fraction or "
        "data.evaluation_sources");
  }
  EvaluationSum all(plan_.evaluate.graph.target_weights);
  std::vector<SourceLoss> sources;
  for (const JobData::Evaluation& evaluation : data_->evaluations()) {
    EvaluationSum source(plan_.evaluate.graph.target_weights);
    SHALE_RETURN_IF_ERROR(EvaluateSource(*evaluation.loader, sequences, source, all));
    const EvaluationReport report = source.Report(steps_);
    if (!evaluation.name.empty()) sources.push_back({evaluation.name, report.loss, report.tokens});
  }
  EvaluationReport report = all.Report(steps_);
  report.sources = std::move(sources);
  return report;
}

absl::Status Session::EvaluateSource(const BatchLoader& loader, int64_t sequences, EvaluationSum& source,
                                     EvaluationSum& all) {
  HostBatch batch(loader, 1, local_ranks_);
  const int64_t per_run = job_.batch.micro_batch * job_.sharding.ranks;
  const int64_t end = std::min(sequences, loader.samples_per_epoch());
  for (int64_t begin = 0; begin < end; begin += per_run) {
    const absl::StatusOr<std::vector<StepInputs>> inputs = batch.Fill({begin, std::min(per_run, end - begin)});
    if (!inputs.ok()) return WithoutData(inputs.status());
    if (absl::Status status = evaluate_->Run(*inputs); !status.ok()) {
      failed_ = damaged_ = true;
      return status;
    }
    source.Add(evaluate_->outputs(0));
    all.Add(evaluate_->outputs(0));
  }
  return absl::OkStatus();
}

absl::Status Session::WithNextTokens(absl::FunctionRef<absl::Status(NextTokens&)> generate) {
  if (damaged_) return absl::FailedPreconditionError("a failure left the state unusable: nothing can be generated");
  if (sequences_ == nullptr) {
    return absl::FailedPreconditionError("the job plans no generation: set runtime.generate");
  }
  // Every call begins without tokens, so it does not depend on what steps have stored over the cache since the last.
  NextTokens next(*sequences_);
  const absl::Status status = generate(next);
  if (sequences_->failed()) failed_ = damaged_ = true;
  return status;
}

absl::StatusOr<absl::Span<const float>> Session::Logits(absl::Span<const int32_t> context) {
  absl::StatusOr<absl::Span<const float>> logits;
  SHALE_RETURN_IF_ERROR(WithNextTokens([&](NextTokens& next) {
    logits = next.Logits(context);
    return logits.status();
  }));
  return logits;
}

absl::Status Session::Generate(absl::Span<const int32_t> prompt, int64_t count, const SamplingOptions& sampling,
                               absl::FunctionRef<bool(int32_t)> emit) {
  return WithNextTokens([&](NextTokens& next) { return next.Generate(prompt, count, sampling, emit); });
}

absl::Status Session::WriteTrace() const {
  if (trace_.empty()) return absl::FailedPreconditionError("no step was traced");
  SHALE_RETURN_IF_ERROR(WriteFileDurably(trace_options_.path, trace_.ChromeJson()));
  const std::string table = TraceTable();
  return table.empty() ? absl::OkStatus() : WriteFileDurably(trace_options_.path + ".txt", table);
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
  if (report.status.ok()) saved_step_ = report.step;
  Tell(report);
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
  manifest.evaluations = evaluations_.saved();
  manifest.base = base_;
  return manifest;
}

}  // namespace shale
