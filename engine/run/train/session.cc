// The run of a session: its steps, and what happens between them.

#include "engine/run/train/session.h"

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/api/job.h"
#include "engine/run/runtime/rank_runtime.h"
#include "engine/run/train/batch_prefetcher.h"
#include "kernels/check.h"
#include "kernels/step_scalars.h"

namespace shale {

void Session::ForgetState(bool frozen) {
  if (frozen) {
    if (saves()) checkpointer_->WaitForWriting();
    base_.reset();  // The frozen weights are no longer those of the folder.
  }
  check_->ForgetState();
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
  batches_->WaitForRead();  // `data` may be the source that is read ahead.
  absl::StatusOr<std::unique_ptr<BatchLoader>> loader = OpenData(data);
  SHALE_RETURN_IF_ERROR(Everywhere(loader.status()));
  const DataDescription& description = data->description();
  if (control_.processes() > 1) SHALE_RETURN_IF_ERROR(CheckSameData(description.name, description.samples));
  absl::StatusOr<std::unique_ptr<BatchPrefetcher>> batches =
      BatchPrefetcher::Create(**loader, plan_.options.micro_batches, local_ranks_);
  SHALE_RETURN_IF_ERROR(Everywhere(batches.ok() ? (*loader)->Start(0, nullptr) : batches.status()));
  batches_ = *std::move(batches);  // Borrows the loader, as the former one borrowed the former loader.
  data_->GoOnWith(*std::move(loader), position_);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<BatchLoader>> Session::OpenData(DataSource* data) const {
  if (health_.failed()) return absl::FailedPreconditionError("an earlier step failed, and no step can use other data");
  if (data == nullptr) return absl::InvalidArgumentError("SetData was given no data");
  SHALE_RETURN_IF_ERROR(CheckSource(*data, control_.processes(), saves()));
  return data_->OpenOther(job_, NeedsOf(plan_.train.graph), *data);
}

absl::StatusOr<StepReport> Session::Step() {
  if (!health_.failed() && done()) {
    return absl::FailedPreconditionError(
        "the run is over: no step is left, a stop was requested, or its patience is at an end");
  }
  return RunStep();
}

absl::StatusOr<StepReport> Session::RunStep() {
  absl::StatusOr<StepReport> report = ComputeStep();
  if (report.ok()) {
    report->metrics = metrics_.Take();
    const absl::Status exchanged = monitor_.AfterStep({.waited_ns = waited_ns_,
                                                       .flops = flops_.OfTokens(report->processed_tokens),
                                                       .document_flops = document_flops_,
                                                       .wants_trace = contract_ && contract_->WantsTrace(),
                                                       .longest = std::move(longest_local_)},
                                                      *report);
    if (!exchanged.ok()) report = exchanged;
  }
  if (!report.ok()) {
    health_.TellFailure(report.status(), "step");
    return report;
  }
  if (slow_) monitor_.Warn(contract_->Warning(monitor_.longest_of_job()));
  devices_.slow_ranks = monitor_.slow_ranks();
  if (!devices_.slow_ranks.empty()) health_.Tell(Warning{devices_.slow_ranks});
  for (const std::string& warning : warnings()) health_.Tell(Warning{warning});
  health_.Tell(*report);
  return report;
}

absl::StatusOr<StepReport> Session::ComputeStep() {
  if (health_.failed()) {
    return absl::FailedPreconditionError("an earlier step failed; this trainer cannot go on");
  }
  const auto start = std::chrono::steady_clock::now();
  const double learning_rate = own_learning_rate_.value_or(learning_rate_.At(steps()));
  const absl::StatusOr<std::vector<StepInputs>> inputs = NextInputs(learning_rate);
  if (!inputs.ok()) return WithoutData(inputs.status());
  document_flops_ = DocumentFlops(*inputs);
  SHALE_RETURN_IF_ERROR(RunProgram(*inputs));
  SHALE_RETURN_IF_ERROR(CheckOutputs());
  const StepOutputs& out = programs_.train->outputs(0);
  const int64_t samples = data_->SamplesAt(position_).count;
  position_ += samples;
  ++health_.steps().done;
  tokens_ += out.global_tokens;
  const StepReport report =
      MakeStepReport(out, {.step = steps(),
                           .tokens = tokens_,
                           .processed_tokens = samples * job_.batch.sequence_length,
                           .learning_rate = learning_rate,
                           .seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
                           .predicted_seconds = contract_ ? contract_->predicted_seconds() : 0,
                           .peak_bytes_planned = plan_.arena_bytes,
                           .peak_bytes_measured = programs_.ranks->measured_peak_bytes(),
                           .target_weights = plan_.train.graph.target_weights});
  CompareWithPrediction(report.seconds);
  trace_.EndStep(plan_.train.step.program, *programs_.ranks, *programs_.train, report.seconds);
  return report;
}

absl::StatusOr<std::vector<StepInputs>> Session::NextInputs(double learning_rate) {
  SHALE_ASSIGN_OR_RETURN(std::vector<StepInputs> inputs,
                         batches_->Take(data_->SamplesAt(position_), SamplesAfterNext()));
  for (StepInputs& in : inputs) {
    in.hyper[kHyperLearningRate] = static_cast<float>(learning_rate);
    in.hyper[kHyperMaxNorm] = static_cast<float>(job_.optimizer.max_gradient_norm);
  }
  return inputs;
}

double Session::DocumentFlops(const std::vector<StepInputs>& inputs) {
  double flops = 0;
  if (!flops_.has_documents()) return flops;
  const BatchLoader& loader = data_->training();
  const StepSamples samples = data_->SamplesAt(position_);
  const int64_t micro_batches = plan_.options.micro_batches;
  for (size_t local = 0; local < inputs.size(); ++local) {
    const auto position_ids = inputs[local].Get<int32_t>(StepItem::kPositionIds);
    for (int64_t k = 0; k < micro_batches; ++k) {
      const int64_t size = std::ssize(position_ids) / micro_batches;
      const int64_t sequences = loader.FilledSlots(samples, (*programs_.ranks)[local].rank(), k);
      flops += flops_.OfDocuments(position_ids.subspan(k * size, sequences * job_.batch.sequence_length));
    }
  }
  return flops;
}

absl::Status Session::RunProgram(const std::vector<StepInputs>& inputs) {
  LocalRanks& ranks = *programs_.ranks;
  const int64_t step = steps() + 1;
  health_.steps().begun = step;
  if (steps_begun_ == 0) health_.Tell(Progress{StartStage::kFirstStep});
  SHALE_ASSIGN_OR_RETURN(const bool traced, trace_.BeginStep(++steps_begun_));
  looks_ = monitor_.wants_trace();  // In all processes, because a step that is traced runs no graphs.
  programs_.train->SetTracing(traced || looks_);
  if (const absl::Status noted = NoteGradientScale(); !noted.ok()) return health_.Damage(noted);
  waited_ns_.clear();
  for (RankRuntime* rank : ranks.runtimes()) waited_ns_.emplace_back(rank->rank(), -BlockedNs(*rank));
  if (const absl::Status status = check_->RunStep(step, inputs); !status.ok()) return health_.Damage(status);
  for (int local = 0; local < ranks.size(); ++local) waited_ns_[local].second += BlockedNs(ranks[local]);
  if (steps_begun_ == 1) {
    ranks.EnterMemory("the first step");
    devices_.late_memory = ranks.LateMemory();
    devices_.description = programs_.Describe();
    if (!devices_.late_memory.empty()) health_.Tell(Warning{devices_.late_memory});
  }
  if (traced) trace_.Add(plan_.train.step.program, step, ranks, *programs_.train);
  return absl::OkStatus();
}

void Session::CompareWithPrediction(double seconds) {
  longest_local_ = {};
  if (looks_) {
    const LocalRanks& ranks = *programs_.ranks;
    for (int local = 0; local < ranks.size(); ++local) {
      RankTimes rank = TimesOfRank(plan_.train.step.program, plan_.options.mesh, ranks.number(local),
                                   programs_.train->times(local), seconds);
      // On CPUs it is known how long the rank's computation has waited. A collective may also run alone while the rank
      // itself is late to issue what the others wait for.
      if (const int64_t waited = waited_ns_[local].second; waited > 0) {
        rank.own_seconds = seconds - static_cast<double>(waited) * 1e-9;
      }
      if (longest_local_.rank < 0 || rank.own_seconds > longest_local_.own_seconds) longest_local_ = std::move(rank);
    }
  }
  if (!contract_) return;
  slow_ = contract_->Add(seconds);
  devices_.step_time = contract_->Describe();
}

absl::Status Session::NoteGradientScale() {
  if (!job_.memory.keep_gradients || job_.precision.compute != ComputePrecision::kFloat16) return absl::OkStatus();
  Manifest scalars;
  SHALE_RETURN_IF_ERROR((*local_state_)[0].ReadScalars(scalars));
  state_->gradient_scale_ = scalars.loss_scale.factor;
  return absl::OkStatus();
}

absl::Status Session::CheckOutputs() {
  const int64_t step = steps() + 1;
  const StepOutputs& out = programs_.train->outputs(0);
  const bool scales = job_.precision.compute == ComputePrecision::kFloat16;
  const auto skips = static_cast<int64_t>(out.loss_scale[kLossScaleSkips]);
  const bool stops = !IsFinite(out) && job_.optimizer.non_finite == NonFinite::kStop &&
                     (!scales || skips >= job_.precision.max_skipped_steps);
  // Before a number that is not finite ends the run: the bits of a rank that computes wrongly may be its cause.
  if (const absl::Status equal = check_->Compare(step, /*always=*/stops); !equal.ok()) return health_.Damage(equal);
  if (!stops) return absl::OkStatus();
  health_.Fail();
  // The ranks look at their shards of the gradient after it is summed over all of them, so that where a number was
  // computed wrongly is not known.
  const int64_t ranks = job_.sharding.ranks;
  const absl::Status error = absl::DataLossError(absl::StrCat(
      "step ", step, ": the loss or the gradient is not finite",
      ranks > 1 ? absl::StrCat(" in the sum over ", ranks, " ranks, to which any of them may have brought it") : "",
      scales ? absl::StrCat(
                   ", in the last of ", skips, " skipped steps in a row, which have brought the loss scale to ",
                   absl::StrFormat("%.4g", out.loss_scale[kLossScaleFactor]),
                   ": the loss or the activations overflow fp16 themselves, or the scale was too large to come down "
                   "in so few steps. Lower optimizer.learning_rate or precision.init_scale, raise "
                   "precision.max_skipped_steps, or use precision.compute=BF16")
             : "; the update was not applied. Lower optimizer.learning_rate, or set optimizer.non_finite=SKIP to skip "
               "such steps"));
  return control_.processes() > 1 ? Agreed(error) : error;
}

absl::Status Session::WithoutData(const absl::Status& error) {
  return control_.processes() > 1 ? health_.Damage(error) : error;
}

absl::StatusOr<EvaluationReport> Session::Evaluate(int64_t sequences) {
  absl::StatusOr<EvaluationReport> report = ComputeEvaluation(sequences);
  if (report.ok()) {
    health_.Tell(*report);
  } else if (!absl::IsFailedPrecondition(report.status())) {  // A call that was refused changes nothing of the run.
    health_.TellFailure(report.status(), "evaluation");
  }
  return report;
}

absl::StatusOr<EvaluationReport> Session::ComputeEvaluation(int64_t sequences) {
  if (!has_evaluation_data()) {
    return absl::FailedPreconditionError(
        "the job has no evaluation data: set data.evaluation_path, data.evaluation_fraction or "
        "data.evaluation_sources");
  }
  EvaluationSum all(plan_.evaluate.graph.target_weights);
  std::vector<SourceLoss> sources;
  for (const JobData::Evaluation& evaluation : data_->evaluations()) {
    EvaluationSum source(plan_.evaluate.graph.target_weights);
    SHALE_RETURN_IF_ERROR(EvaluateSource(*evaluation.loader, sequences, source, all));
    const EvaluationReport report = source.Report(steps());
    if (!evaluation.name.empty()) sources.push_back({evaluation.name, report.loss, report.tokens});
  }
  EvaluationReport report = all.Report(steps());
  report.sources = std::move(sources);
  return report;
}

absl::Status Session::EvaluateSource(const BatchLoader& loader, int64_t sequences, EvaluationSum& source,
                                     EvaluationSum& all) {
  SampleBatch batch(loader, 1, local_ranks_);
  LocalProgram& evaluate = *programs_.evaluate;
  const int64_t per_run = job_.batch.micro_batch * job_.sharding.ranks;
  const int64_t end = std::min(sequences, loader.samples_per_epoch());
  for (int64_t begin = 0; begin < end; begin += per_run) {
    const absl::StatusOr<std::vector<StepInputs>> inputs = batch.Fill({begin, std::min(per_run, end - begin)});
    if (!inputs.ok()) return WithoutData(inputs.status());
    if (const absl::Status status = evaluate.Run(*inputs); !status.ok()) return health_.Damage(status);
    source.Add(evaluate.outputs(0));
    all.Add(evaluate.outputs(0));
  }
  return absl::OkStatus();
}

StepSamples Session::SamplesAfterNext() const {
  if (steps() + 1 >= data_->total_steps()) return {};
  return data_->SamplesAt(position_ + data_->SamplesAt(position_).count);
}

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
