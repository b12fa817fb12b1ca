#include "engine/api/trainer.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/api/trainer_options.h"
#include "engine/api/trainer_parts.h"
#include "engine/files/io/file.h"
#include "engine/plan/time/prediction.h"
#include "engine/run/generate/next_tokens.h"
#include "engine/run/runtime/local_ranks.h"
#include "engine/run/runtime/trace.h"
#include "engine/run/runtime/work_times.h"
#include "engine/run/state/local_state.h"
#include "engine/run/train/run_health.h"
#include "engine/run/train/session.h"
#include "kernels/check.h"
#include "sharding/comm/control_plane.h"

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
void CollectWorkTimes(Trainer& trainer, WorkTimes& times) { trainer.session_->CollectWorkTimes(times); }

absl::Status Trainer::AddMetric(absl::string_view name, double value) { return session_->AddMetric(name, value); }

TrainerState::TrainerState(LocalState& state, const RunHealth& health, BeforeWrite before_write)
    : state_(state), health_(health), before_write_(std::move(before_write)) {}

absl::StatusOr<const LocalState*> TrainerState::Readable() const {
  if (health_.damaged()) return absl::FailedPreconditionError("a failure left the state unusable: it cannot be read");
  return &state_;
}

absl::StatusOr<LocalState*> TrainerState::Writable(absl::string_view parameter) {
  if (health_.damaged()) {
    return absl::FailedPreconditionError("a failure left the state unusable: it cannot be written");
  }
  if (health_.failed()) {
    return absl::FailedPreconditionError("an earlier step failed, and no step can use what is written");
  }
  const std::vector<Parameter>& all = parameters();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const Parameter& each) { return each.name == parameter; });
  before_write_(found != all.end() && found->frozen);
  return &state_;
}

const std::vector<Parameter>& TrainerState::parameters() const { return state_.parameters(); }

absl::Status TrainerState::ReadParameter(absl::string_view name, absl::Span<float> values) const {
  SHALE_ASSIGN_OR_RETURN(const LocalState* state, Readable());
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, state->Find(name, std::ssize(values)));
  return state->Read(id, 0, values);
}

absl::Status TrainerState::ReadParameter(absl::string_view name, int64_t begin, absl::Span<float> values) const {
  SHALE_ASSIGN_OR_RETURN(const LocalState* state, Readable());
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, state->FindElements(name, begin, std::ssize(values)));
  return state->Read(id, begin, values);
}

absl::Status TrainerState::WriteParameter(absl::string_view name, absl::Span<const float> values) {
  SHALE_ASSIGN_OR_RETURN(LocalState * state, Writable(name));
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, state->Find(name, std::ssize(values)));
  return state->Write(id, 0, values);
}

absl::Status TrainerState::WriteParameter(absl::string_view name, int64_t begin, absl::Span<const float> values) {
  SHALE_ASSIGN_OR_RETURN(LocalState * state, Writable(name));
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, state->FindElements(name, begin, std::ssize(values)));
  return state->Write(id, begin, values);
}

absl::Status TrainerState::ReadUnscaled(const LocalState& state, ParameterId id, int64_t begin,
                                        absl::Span<float> values) const {
  SHALE_RETURN_IF_ERROR(state.ReadGradient(id, begin, values));
  if (gradient_scale_ == 1) return absl::OkStatus();
  for (float& value : values) value = static_cast<float>(value / gradient_scale_);
  return absl::OkStatus();
}

absl::Status TrainerState::ReadGradient(absl::string_view name, absl::Span<float> values) const {
  SHALE_ASSIGN_OR_RETURN(const LocalState* state, Readable());
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, state->Find(name, std::ssize(values)));
  return ReadUnscaled(*state, id, 0, values);
}

absl::Status TrainerState::ReadGradient(absl::string_view name, int64_t begin, absl::Span<float> values) const {
  SHALE_ASSIGN_OR_RETURN(const LocalState* state, Readable());
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, state->FindElements(name, begin, std::ssize(values)));
  return ReadUnscaled(*state, id, begin, values);
}

std::vector<std::string> TrainerState::optimizer_states() const {
  std::vector<std::string> names;
  for (const SavedState& state : state_.states()) {
    // Rules may keep states of the same name in other forms.
    if (std::find(names.begin(), names.end(), state.name) == names.end()) names.emplace_back(state.name);
  }
  return names;
}

absl::StatusOr<int64_t> TrainerState::OptimizerStateElements(absl::string_view state,
                                                             absl::string_view parameter) const {
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, state_.Find(parameter));
  SHALE_ASSIGN_OR_RETURN(const int index, state_.FindState(state, id));
  return state_.StateElements(index, id);
}

absl::Status TrainerState::ReadOptimizerState(absl::string_view state, absl::string_view parameter, int64_t begin,
                                              absl::Span<float> values) const {
  SHALE_ASSIGN_OR_RETURN(const LocalState* all, Readable());
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, all->Find(parameter));
  SHALE_ASSIGN_OR_RETURN(const int index, all->FindState(state, id));
  return all->ReadState(index, id, begin, values);
}

absl::Status TrainerState::WriteOptimizerState(absl::string_view state, absl::string_view parameter, int64_t begin,
                                               absl::Span<const float> values) {
  SHALE_ASSIGN_OR_RETURN(LocalState * all, Writable(parameter));
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, all->Find(parameter));
  SHALE_ASSIGN_OR_RETURN(const int index, all->FindState(state, id));
  return all->WriteState(index, id, begin, values);
}

TrainerTrace::TrainerTrace(const TrainerOptions& options, ControlPlane& control)
    : options_(std::make_unique<const TraceOptions>(options.trace)),
      peak_flops_(options.peak_flops),
      peak_flops_fp8_(options.peak_flops * Float8Speed(options.peak_flops, options.peak_flops_fp8)),
      control_(control),
      trace_(std::make_unique<StepTrace>()),
      left_(options.trace.steps) {}

TrainerTrace::~TrainerTrace() = default;

bool TrainerTrace::empty() const { return trace_->empty(); }

std::string TrainerTrace::Describe() const {
  if (options_->path.empty()) return "none";
  return absl::StrCat("one of ", options_->steps, " steps from step ", options_->first_step);
}

std::string TrainerTrace::Table() const {
  return trace_->Table({.bytes_per_second = options_->bytes_per_second,
                        .flops_per_second = peak_flops_,
                        .float8_flops_per_second = peak_flops_fp8_});
}

absl::Status TrainerTrace::Write() const {
  if (empty()) return absl::FailedPreconditionError("no step was traced");
  SHALE_RETURN_IF_ERROR(WriteFileDurably(options_->path, trace_->ChromeJson()));
  const std::string table = Table();
  return table.empty() ? absl::OkStatus() : WriteFileDurably(options_->path + ".txt", table);
}

absl::StatusOr<bool> TrainerTrace::BeginStep(int64_t number) {
  const int64_t place = number - options_->first_step;
  traces_ = place >= 0 && place < options_->steps && (!options_->path.empty() || works_ != nullptr);
  if (traces_ && empty() && control_.processes() > 1) SHALE_RETURN_IF_ERROR(AgreeOnOrigin());
  return traces_;
}

void TrainerTrace::Add(const StepProgram& program, int64_t step, LocalRanks& ranks, const LocalProgram& train) {
  if (options_->path.empty()) return;
  for (int local = 0; local < ranks.size(); ++local)
    trace_->Add(program, step, ranks.number(local), train.times(local));
  --left_;
}

void TrainerTrace::EndStep(const StepProgram& program, LocalRanks& ranks, const LocalProgram& train, double seconds) {
  if (traces_ && works_ != nullptr) works_->Add(program, ranks.mesh(), TimesOfRanks(ranks, train), seconds);
  if (left_ != 0 || control_.processes() > 1) return;
  left_ = -1;
  Write().IgnoreError();  // Run writes it once more, and reports errors.
}

absl::Status TrainerTrace::AgreeOnOrigin() {
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
  trace_->SetOrigin(origin);
  return absl::OkStatus();
}

absl::Status LiveGenerator::WithNextTokens(absl::FunctionRef<absl::Status(NextTokens&)> generate) {
  absl::Status status;
  if (health_.damaged()) {
    status = absl::FailedPreconditionError("a failure left the state unusable: nothing can be generated");
  } else if (sequences_ == nullptr) {
    return absl::FailedPreconditionError("the job plans no generation: set runtime.generate");
  } else {
    // Every call begins without tokens, so it does not depend on what steps have stored over the cache since the last.
    NextTokens next(*sequences_);
    status = generate(next);
    if (sequences_->failed()) status = health_.Damage(status);
  }
  if (health_.damaged()) health_.TellFailure(status, "generation");
  return status;
}

absl::StatusOr<absl::Span<const float>> LiveGenerator::Logits(absl::Span<const int32_t> context) {
  absl::StatusOr<absl::Span<const float>> logits;
  SHALE_RETURN_IF_ERROR(WithNextTokens([&](NextTokens& next) {
    logits = next.Logits(context);
    return logits.status();
  }));
  return logits;
}

absl::Status LiveGenerator::Generate(absl::Span<const int32_t> prompt, int64_t count, const SamplingOptions& sampling,
                                     absl::FunctionRef<bool(int32_t)> emit) {
  return WithNextTokens([&](NextTokens& next) { return next.Generate(prompt, count, sampling, emit); });
}

}  // namespace shale
