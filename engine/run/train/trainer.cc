#include "engine/api/trainer.h"

#include <utility>

#include "engine/run/train/session.h"

namespace shale {

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const Job& job, const TrainerOptions& options) {
  absl::StatusOr<std::unique_ptr<Session>> session = Session::Create(job, options);
  if (!session.ok()) {
    if (options.events != nullptr) {
      options.events->Take(
          {.unix_seconds = UnixSecondsNow(), .what = Failure{.status = session.status(), .culprit = "start"}});
    }
    return session.status();
  }
  return std::unique_ptr<Trainer>(new Trainer(*std::move(session)));
}

Trainer::Trainer(std::unique_ptr<Session> session) : session_(std::move(session)) {}
Trainer::~Trainer() = default;

const Job& Trainer::job() const { return session_->job(); }
const JobPlan& Trainer::plan() const { return session_->plan(); }
const Resumed& Trainer::resumed() const { return session_->resumed(); }
int64_t Trainer::total_steps() const { return session_->total_steps(); }
int64_t Trainer::steps_done() const { return session_->steps(); }
bool Trainer::done() const { return session_->done(); }
std::string Trainer::ended_early() const { return session_->ended_early(); }
bool Trainer::has_evaluation_data() const { return session_->has_evaluation_data(); }
const std::vector<std::string>& Trainer::warnings() const { return session_->warnings(); }

TrainerState& Trainer::state() { return session_->state(); }
const TrainerState& Trainer::state() const { return session_->state(); }
LiveGenerator& Trainer::generator() { return session_->generator(); }
const TrainerTrace& Trainer::trace() const { return session_->trace(); }
const TrainerDevices& Trainer::devices() const { return session_->devices(); }

absl::StatusOr<StepReport> Trainer::Step() { return session_->Step(); }
absl::StatusOr<EvaluationReport> Trainer::Evaluate(int64_t sequences) { return session_->Evaluate(sequences); }
absl::Status Trainer::Run(const TrainCallbacks& callbacks) { return session_->Run(callbacks); }
absl::StatusOr<std::string> Trainer::SaveCheckpoint() { return session_->SaveCheckpoint(); }
void Trainer::RequestStop() { session_->RequestStop(); }
void Trainer::Abort(const absl::Status& why) { session_->Abort(why); }
absl::Status Trainer::ReportFailure(const absl::Status& why) { return session_->ReportFailure(why); }

absl::Status Trainer::SetLearningRate(std::optional<double> rate) { return session_->SetLearningRate(rate); }
absl::Status Trainer::SetData(DataSource* data) { return session_->SetData(data); }
absl::Status Trainer::AddMetric(absl::string_view name, double value) { return session_->AddMetric(name, value); }

}  // namespace shale
