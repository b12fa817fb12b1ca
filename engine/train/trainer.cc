#include "engine/train/trainer.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/checkpoint_policy.h"
#include "engine/train/session.h"
#include "engine/train/step_note.h"
#include "engine/train/step_warnings.h"
#include "engine/train/straggler_monitor.h"
#include "engine/train/user_metrics.h"
#include "kernels/check.h"

namespace shale {

class Trainer::Impl {
 public:
  explicit Impl(std::unique_ptr<Session> session)
      : session_(std::move(session)), doubts_(session_->plan().train.graph.vocabulary, session_->peak_flops() > 0) {
    if (!session_->saves()) return;
    checkpoints_.emplace(session_->job().checkpoint, *session_);
    if (!session_->resumed().path.empty()) checkpoints_->SetSaved(session_->steps());
  }

  Session& session() const { return *session_; }
  UserMetrics& metrics() { return metrics_; }
  const std::string& slow_ranks() const { return slow_ranks_; }
  const std::vector<std::string>& warnings() const { return warnings_; }
  void RequestStop() { stop_.store(true, std::memory_order_relaxed); }
  bool done() const { return stopped() || session_->finished() || session_->evaluations().out_of_patience(); }
  std::string ended_early() const {
    const bool early = session_->evaluations().out_of_patience() && !session_->finished();
    return early ? session_->evaluations().WhyItEnds() : "";
  }

  absl::StatusOr<StepReport> Step() {
    if (!session_->failed() && done())
      return absl::FailedPreconditionError(
          "the run is over: no step is left, a stop was requested, or its patience is at an end");
    return RunStep();
  }

  absl::StatusOr<EvaluationReport> Evaluate(int64_t sequences) {
    absl::StatusOr<EvaluationReport> report = session_->Evaluate(sequences);
    if (report.ok()) {
      session_->Tell(*report);
    } else if (!absl::IsFailedPrecondition(report.status())) {  // A call that was refused changes nothing of the run.
      TellFailure(report.status(), "evaluation");
    }
    return report;
  }

  absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t> context) {
    absl::StatusOr<absl::Span<const float>> logits = session_->Logits(context);
    if (session_->damaged()) TellFailure(logits.status(), "generation");
    return logits;
  }

  absl::Status Generate(absl::Span<const int32_t> prompt, int64_t count, const SamplingOptions& sampling,
                        absl::FunctionRef<bool(int32_t)> emit) {
    const absl::Status status = session_->Generate(prompt, count, sampling, emit);
    if (session_->damaged()) TellFailure(status, "generation");
    return status;
  }

  // Runs the steps and everything between them, writes the trace, and saves the last state.
  absl::Status Run(const TrainCallbacks& callbacks) {
    absl::Status status = RunSteps(callbacks);
    if (!status.ok()) TellFailure(status, "run");
    if (!session_->trace().empty()) status.Update(session_->WriteTrace());
    if (checkpoints_) {
      status.Update(checkpoints_->AtEnd(session_->steps(), /*intact=*/!session_->damaged(), callbacks.on_checkpoint));
    }
    if (status.ok() && (session_->finished() || session_->evaluations().out_of_patience())) {
      status = doubts_.AtEnd(session_->tokens());
      if (!status.ok()) {
        if (session_->control().processes() > 1) status = Agreed(status);  // All have the same reports.
        TellFailure(status, "run");
      }
    }
    if (status.ok()) {
      session_->Tell(Finished{
          .step = session_->steps(), .total_steps = session_->data().total_steps(), .ended_early = ended_early()});
    } else {
      TellFailure(status, "checkpoint");
    }
    return status;
  }

  absl::StatusOr<std::string> SaveCheckpoint() {
    if (!checkpoints_) return absl::FailedPreconditionError("the trainer was given no checkpoint folder");
    if (session_->damaged()) {
      return absl::FailedPreconditionError("a failure left the state unusable: it is not saved");
    }
    return checkpoints_->SaveNow();
  }

 private:
  // Returns whether no further step begins. With several processes, a request takes effect once all know of it.
  bool stopped() const {
    return session_->control().processes() == 1 ? stop_.load(std::memory_order_relaxed) : stop_agreed_;
  }

  // Tells of the first failure. Others are its consequences.
  void TellFailure(const absl::Status& status, const char* culprit) {
    if (!failure_told_) session_->Tell(Failure{.status = status, .culprit = culprit, .step = session_->steps()});
    // An error that all have found alike leaves no question who waited for whom. A report that cannot be written must
    // not hide why the run failed.
    if (session_->damaged() && !IsAgreed(status)) session_->ReportFailure(status).IgnoreError();
    failure_told_ = true;
  }

  absl::StatusOr<StepReport> RunStep() {
    absl::StatusOr<StepReport> report = RunStepEverywhere();
    if (report.ok()) {
      session_->Tell(*report);
    } else {
      TellFailure(report.status(), "step");
    }
    return report;
  }

  // Runs a step. The processes then exchange their stop requests, measured peaks and times.
  absl::StatusOr<StepReport> RunStepEverywhere() {
    SHALE_ASSIGN_OR_RETURN(StepReport report, session_->Step());
    report.metrics = metrics_.Take();
    ControlPlane& control = session_->control();
    const StepNote mine = {.stop = stop_.load(std::memory_order_relaxed),
                           .peak_bytes = report.peak_bytes_measured,
                           .waited_ns = session_->waited_ns()};
    std::vector<std::string> all = {Serialize(mine)};
    if (control.processes() > 1) {
      SHALE_ASSIGN_OR_RETURN(all, control.Gather(ControlChannel::kSteps, std::move(all[0])));
    }
    std::vector<double> waited_seconds(session_->job().sharding.ranks);
    for (const std::string& message : all) {
      SHALE_ASSIGN_OR_RETURN(const StepNote note, ParseStepNote(message));
      report.peak_bytes_measured = std::max(report.peak_bytes_measured, note.peak_bytes);
      stop_agreed_ = stop_agreed_ || note.stop;
      for (const auto& [rank, waited_ns] : note.waited_ns) {
        if (rank < 0 || rank >= std::ssize(waited_seconds)) return absl::InternalError("a process sent a wrong rank");
        waited_seconds[rank] = static_cast<double>(waited_ns) / 1e9;
      }
    }
    slow_ranks_ = control.process() == 0 ? stragglers_.Add(report.seconds, waited_seconds) : "";
    if (!slow_ranks_.empty()) session_->Tell(Warning{slow_ranks_});
    warnings_ = doubts_.Add(report);
    for (const std::string& warning : warnings_) session_->Tell(Warning{warning});
    return report;
  }

  // Returns the status of a callback. With several processes, one that fails ends the run of all, each of which saves.
  absl::Status Everywhere(const absl::Status& status) const {
    return AgreeOnStatus(session_->control(), ControlChannel::kSteps, status);
  }

  absl::Status RunSteps(const TrainCallbacks& callbacks) {
    // A run that was stopped after a step has left its evaluation out, which one that goes on would have made.
    const int64_t begin = session_->steps();
    if (!done() && session_->follows_evaluations() && IsEvaluationDue(begin) && !session_->evaluations().Has(begin)) {
      SHALE_ASSIGN_OR_RETURN(const bool best, EvaluateAndFollow(callbacks));
      SHALE_RETURN_IF_ERROR(SaveIfDue(best, callbacks));
    }
    while (!done()) {
      // RunStep does not check for a stop: one that is requested from now on takes effect after this step.
      SHALE_ASSIGN_OR_RETURN(const StepReport report, RunStep());
      SHALE_RETURN_IF_ERROR(Everywhere(callbacks.on_step ? callbacks.on_step(report) : absl::OkStatus()));
      // Evaluates before it saves, because the checkpoint records the result.
      bool best = false;
      const bool last = report.step == session_->data().total_steps();
      if (IsEvaluationDue(report.step) && (last || !done())) {
        SHALE_ASSIGN_OR_RETURN(best, EvaluateAndFollow(callbacks));
      }
      SHALE_RETURN_IF_ERROR(SaveIfDue(best, callbacks));
    }
    return absl::OkStatus();
  }

  // `best`: the evaluation after the last step is the best so far.
  absl::Status SaveIfDue(bool best, const TrainCallbacks& callbacks) {
    if (!checkpoints_) return absl::OkStatus();
    const absl::Status saved = checkpoints_->AfterStep(
        session_->steps(), best, [this] { return done(); }, callbacks.on_checkpoint);
    if (!saved.ok()) TellFailure(saved, "checkpoint");
    return saved;
  }

  bool IsEvaluationDue(int64_t step) const {
    const int64_t every = session_->job().telemetry.evaluate_every;
    const bool due = step == session_->data().total_steps() || (every > 0 && step > 0 && step % every == 0);
    return due && !session_->data().evaluations().empty();
  }

  // Evaluates. Returns whether the job follows its evaluations, and this one was the best so far.
  absl::StatusOr<bool> EvaluateAndFollow(const TrainCallbacks& callbacks) {
    SHALE_ASSIGN_OR_RETURN(const EvaluationReport report, Evaluate(session_->job().telemetry.evaluation_sequences));
    const bool best = session_->follows_evaluations() && session_->evaluations().Add(session_->steps(), report.loss);
    SHALE_RETURN_IF_ERROR(Everywhere(callbacks.on_evaluation ? callbacks.on_evaluation(report) : absl::OkStatus()));
    return best;
  }

  const std::unique_ptr<Session> session_;
  std::optional<CheckpointPolicy> checkpoints_;  // Empty if nothing is saved.
  std::atomic<bool> stop_ = false;               // This process was asked to stop.
  UserMetrics metrics_;                          // For the report of the next step.
  StragglerMonitor stragglers_;
  std::string slow_ranks_;  // See Trainer::slow_ranks.
  StepWarnings doubts_;
  std::vector<std::string> warnings_;  // See Trainer::warnings.
  bool failure_told_ = false;
  bool stop_agreed_ = false;  // Some process was asked to stop, and all know it. Used only with several processes.
};

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const Job& job, const TrainerOptions& options) {
  absl::StatusOr<std::unique_ptr<Session>> session = Session::Create(job, options);
  if (!session.ok()) {
    if (options.events != nullptr) {
      options.events->Take(
          {.unix_seconds = UnixSecondsNow(), .what = Failure{.status = session.status(), .culprit = "start"}});
    }
    return session.status();
  }
  return std::unique_ptr<Trainer>(new Trainer(std::make_unique<Impl>(*std::move(session))));
}

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;

const Job& Trainer::job() const { return impl_->session().job(); }
const JobPlan& Trainer::plan() const { return impl_->session().plan(); }
int64_t Trainer::overhead_bytes() const { return impl_->session().overhead_bytes(); }
std::string Trainer::device_description() const { return impl_->session().device_description(); }
const std::string& Trainer::late_memory() const { return impl_->session().late_memory(); }
const std::string& Trainer::slow_ranks() const { return impl_->slow_ranks(); }
const std::vector<std::string>& Trainer::warnings() const { return impl_->warnings(); }
const Resumed& Trainer::resumed() const { return impl_->session().resumed(); }
int64_t Trainer::total_steps() const { return impl_->session().data().total_steps(); }
int64_t Trainer::steps_done() const { return impl_->session().steps(); }
bool Trainer::done() const { return impl_->done(); }
absl::StatusOr<StepReport> Trainer::Step() { return impl_->Step(); }
absl::StatusOr<EvaluationReport> Trainer::Evaluate(int64_t sequences) { return impl_->Evaluate(sequences); }
absl::Status Trainer::Run(const TrainCallbacks& callbacks) { return impl_->Run(callbacks); }
absl::StatusOr<absl::Span<const float>> Trainer::Logits(absl::Span<const int32_t> context) {
  return impl_->Logits(context);
}
absl::Status Trainer::Generate(absl::Span<const int32_t> prompt, int64_t count, const SamplingOptions& sampling,
                               absl::FunctionRef<bool(int32_t)> emit) {
  return impl_->Generate(prompt, count, sampling, emit);
}
bool Trainer::has_evaluation_data() const { return !impl_->session().data().evaluations().empty(); }
std::string Trainer::ended_early() const { return impl_->ended_early(); }
void Trainer::RequestStop() { impl_->RequestStop(); }
absl::Status Trainer::ReportFailure(const absl::Status& why) { return impl_->session().ReportFailure(why); }
void Trainer::Abort(const absl::Status& why) { impl_->session().Abort(why); }
absl::StatusOr<std::string> Trainer::SaveCheckpoint() { return impl_->SaveCheckpoint(); }
absl::Status Trainer::WriteTrace() const { return impl_->session().WriteTrace(); }
absl::Status Trainer::SetLearningRate(std::optional<double> rate) { return impl_->session().SetLearningRate(rate); }
absl::Status Trainer::SetData(DataSource* data) { return impl_->session().SetData(data); }
absl::Status Trainer::AddMetric(absl::string_view name, double value) { return impl_->metrics().Add(name, value); }
std::string Trainer::TraceTable() const { return impl_->session().TraceTable(); }
const std::vector<Parameter>& Trainer::parameters() const { return impl_->session().state().parameters(); }

absl::Status Trainer::ReadParameter(absl::string_view name, absl::Span<float> values) const {
  SHALE_ASSIGN_OR_RETURN(const LocalState* state, impl_->session().ReadableState());
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, state->Find(name, std::ssize(values)));
  return state->Read(id, 0, values);
}

absl::Status Trainer::ReadParameter(absl::string_view name, int64_t begin, absl::Span<float> values) const {
  SHALE_ASSIGN_OR_RETURN(const LocalState* state, impl_->session().ReadableState());
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, state->FindElements(name, begin, std::ssize(values)));
  return state->Read(id, begin, values);
}

absl::Status Trainer::WriteParameter(absl::string_view name, absl::Span<const float> values) {
  SHALE_ASSIGN_OR_RETURN(LocalState * state, impl_->session().WritableState(name));
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, state->Find(name, std::ssize(values)));
  return state->Write(id, 0, values);
}

absl::Status Trainer::WriteParameter(absl::string_view name, int64_t begin, absl::Span<const float> values) {
  SHALE_ASSIGN_OR_RETURN(LocalState * state, impl_->session().WritableState(name));
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, state->FindElements(name, begin, std::ssize(values)));
  return state->Write(id, begin, values);
}

absl::Status Trainer::ReadGradient(absl::string_view name, absl::Span<float> values) const {
  SHALE_ASSIGN_OR_RETURN(const LocalState* state, impl_->session().ReadableState());
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, state->Find(name, std::ssize(values)));
  return state->ReadGradient(id, 0, values);
}

absl::Status Trainer::ReadGradient(absl::string_view name, int64_t begin, absl::Span<float> values) const {
  SHALE_ASSIGN_OR_RETURN(const LocalState* state, impl_->session().ReadableState());
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, state->FindElements(name, begin, std::ssize(values)));
  return state->ReadGradient(id, begin, values);
}

std::vector<std::string> Trainer::optimizer_states() const {
  std::vector<std::string> names;
  for (const UpdateState& state : impl_->session().state().states()) names.emplace_back(state.name);
  return names;
}

absl::Status Trainer::ReadOptimizerState(absl::string_view state, absl::string_view parameter, int64_t begin,
                                         absl::Span<float> values) const {
  SHALE_ASSIGN_OR_RETURN(const LocalState* all, impl_->session().ReadableState());
  SHALE_ASSIGN_OR_RETURN(const int index, all->FindState(state));
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, all->FindElements(parameter, begin, std::ssize(values)));
  return all->ReadState(index, id, begin, values);
}

absl::Status Trainer::WriteOptimizerState(absl::string_view state, absl::string_view parameter, int64_t begin,
                                          absl::Span<const float> values) {
  SHALE_ASSIGN_OR_RETURN(LocalState * all, impl_->session().WritableState(parameter));
  SHALE_ASSIGN_OR_RETURN(const int index, all->FindState(state));
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, all->FindElements(parameter, begin, std::ssize(values)));
  return all->WriteState(index, id, begin, values);
}

}  // namespace shale
