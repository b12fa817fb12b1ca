// Creating, running and freeing trainers through the C interface.
//
// What a program does between the steps of a trainer: it reads and writes the state, changes the learning rate and the
// data, adds metrics, and generates.

#include "engine/c/trainers.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "engine/api/trainer_options.h"
#include "engine/c/calls.h"
#include "engine/c/handles.h"
#include "engine/c/jobs.h"
#include "engine/c/shale.h"
#include "engine/run/events/event_json.h"
#include "engine/run/runtime/backend.h"
#include "engine/strings/messages.h"
#include "kernels/check.h"

namespace shale::c {
namespace {

using Function = void (*)(void* user, const char* json);

class FunctionWriter : public EventWriter {
 public:
  FunctionWriter(Function function, void* user) : function_(function), user_(user) {}
  absl::Status Write(const RunEvent& event) override {
    function_(user_, EventLine(event).ToString().c_str());
    return absl::OkStatus();
  }

 private:
  const Function function_;
  void* const user_;
};

absl::StatusOr<ResumeOptions> ResumeOf(const shale_trainer_options& options) {
  switch (options.resume) {
    case SHALE_RESUME_NOTHING: return ResumeOptions{};
    case SHALE_RESUME_LATEST: return ResumeOptions{.from = ResumeFrom::kLatest};
    case SHALE_RESUME_LATEST_OR_START: return ResumeOptions{.from = ResumeFrom::kLatestOrStart};
    case SHALE_RESUME_PATH:
      SHALE_RETURN_IF_ERROR(Require(options.resume_path, "options->resume_path"));
      return ResumeOptions{.from = ResumeFrom::kPath, .path = options.resume_path};
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("options->resume is ", options.resume, "; allowed: SHALE_RESUME_NOTHING and those after it"));
  }
}

absl::StatusOr<uint64_t> Create(Job job, const shale_trainer_options& given) {
  auto kept = std::make_shared<KeptTrainer>();
  TrainerOptions options;
  if (given.checkpoint_folder != nullptr) options.checkpoint_folder = given.checkpoint_folder;
  SHALE_ASSIGN_OR_RETURN(options.resume, ResumeOf(given));
  if (given.model != nullptr) {
    SHALE_ASSIGN_OR_RETURN(options.model, MakeModel(given.model));
  }
  if (given.data != nullptr) {
    SHALE_ASSIGN_OR_RETURN(kept->data, MakeDataSource(given.data, "data"));
  }
  if (given.evaluation_data != nullptr) {
    SHALE_ASSIGN_OR_RETURN(kept->evaluation_data, MakeDataSource(given.evaluation_data, "evaluation_data"));
  }
  options.data = kept->data.get();
  options.evaluation_data = kept->evaluation_data.get();
  SHALE_ASSIGN_OR_RETURN(kept->events, Events::Create(given, job.telemetry.sinks));
  options.events = kept->events.get();
  SHALE_RETURN_IF_ERROR(DecideCpuMatMuls(job).status());
  SHALE_ASSIGN_OR_RETURN(kept->backend, CreateBackend(job));
  options.backend = kept->backend.get();
  SHALE_ASSIGN_OR_RETURN(kept->trainer, Trainer::Create(job, options));
  return Trainers().Add(std::move(kept));
}

shale_step_report CReport(const StepReport& report) {
  shale_step_report out = SHALE_INIT(shale_step_report);
  out.step = report.step;
  out.tokens = report.tokens;
  out.step_tokens = report.step_tokens;
  out.loss = report.loss;
  out.step_weight = report.step_weight;
  out.gradient_norm = report.gradient_norm;
  out.learning_rate = report.learning_rate;
  out.updated = report.updated ? 1 : 0;
  out.seconds = report.seconds;
  out.tokens_per_second = report.tokens_per_second;
  out.peak_bytes_planned = report.peak_bytes_planned;
  out.peak_bytes_measured = report.peak_bytes_measured;
  out.loss_scale = report.loss_scale;
  out.skips = report.skips;
  return out;
}

shale_trainer_state State(const Trainer& trainer) {
  shale_trainer_state state = SHALE_INIT(shale_trainer_state);
  state.steps_done = trainer.steps_done();
  state.total_steps = trainer.total_steps();
  state.done = trainer.done() ? 1 : 0;
  state.has_evaluation_data = trainer.has_evaluation_data() ? 1 : 0;
  state.resumed_from_step = trainer.resumed().path.empty() ? -1 : trainer.resumed().manifest.step;
  state.parameter_count = std::ssize(trainer.state().parameters());
  return state;
}

absl::StatusOr<shale_parameter> ParameterAt(const Trainer& trainer, int64_t index) {
  SHALE_RETURN_IF_ERROR(CheckIndex(index, std::ssize(trainer.state().parameters()), "parameter"));
  const Parameter& parameter = trainer.state().parameters()[index];
  shale_parameter out = SHALE_INIT(shale_parameter);
  if (parameter.name.size() >= sizeof(out.name)) {
    return absl::FailedPreconditionError(absl::StrCat("the name of parameter ", index, " has ", parameter.name.size(),
                                                      " bytes; this function returns at most ", sizeof(out.name) - 1));
  }
  std::copy(parameter.name.begin(), parameter.name.end(), out.name);
  out.elements = parameter.elements();
  out.dimensions = static_cast<int32_t>(parameter.shape.size());
  std::copy(parameter.shape.begin(), parameter.shape.end(), out.shape);
  return out;
}

// Returns the values of the caller as a span.
template <class T>
absl::StatusOr<absl::Span<T>> TakeValues(T* values, int64_t count) {
  SHALE_RETURN_IF_ERROR(Require(values, "values"));
  if (count < 0) return absl::InvalidArgumentError(absl::StrCat("count is ", count));
  return absl::Span<T>(values, static_cast<size_t>(count));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Events>> Events::Create(const shale_trainer_options& options, const SinksConfig& sinks) {
  for (const auto& [field, path] :
       {std::pair("events", sinks.events), {"tensorboard", sinks.tensorboard}, {"prometheus", sinks.prometheus}}) {
    if (path.empty() || absl::StartsWith(path, "/")) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("telemetry.sinks.", field, ": found ", Quoted(path),
                     ", which begins in a run folder, and this trainer has none; give an absolute path"));
  }
  auto events = absl::WrapUnique(new Events(sinks));
  SHALE_RETURN_IF_ERROR(events->sinks_.Open("/"));
  const auto start = [&](std::unique_ptr<EventWriter> writer) {
    events->queues_.push_back(std::make_unique<EventQueue>());
    events->queues_.back()->Start(std::move(writer));
  };
  if (options.on_event != nullptr) {
    start(std::make_unique<FunctionWriter>(options.on_event, options.on_event_user));
  }
  if (options.event_descriptor != 0) start(WriteJsonTo(options.event_descriptor));
  return events;
}

Events::~Events() { *lost_ = sinks_.Close(); }

void Events::Take(const RunEvent& event) {
  for (const auto& queue : queues_) queue->Take(event);
  sinks_.Take(event);
}

Handles<KeptTrainer>& Trainers() {
  static auto& trainers = *new Handles<KeptTrainer>(HandleKind::kTrainer, "trainer");
  return trainers;
}

}  // namespace shale::c

using shale::Trainer;
using shale::c::CallWith;
using shale::c::Require;

shale_code shale_trainer_create(shale_job job, const shale_trainer_options* options, shale_trainer* trainer,
                                shale_error* error) {
  return shale::c::Call(error, [&]() -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(trainer, "trainer"));
    SHALE_RETURN_IF_ERROR(shale::c::Trainers().CheckProcess());
    SHALE_ASSIGN_OR_RETURN(const auto shared, shale::c::Jobs().Share(job));
    shale_trainer_options given = {};
    if (options != nullptr) {
      SHALE_ASSIGN_OR_RETURN(given, shale::c::TakeStruct(options, "options"));
    }
    SHALE_ASSIGN_OR_RETURN(*trainer, shale::c::Create(*shared, given));
    return absl::OkStatus();
  });
}

shale_code shale_trainer_step(shale_trainer trainer, shale_step_report* report, shale_error* error) {
  return CallWith(trainer, error, [&](Trainer& t) -> absl::Status {
    shale_step_report out = SHALE_INIT(shale_step_report);
    // Checks the struct before the step, so that no step is done without its report.
    if (report != nullptr) SHALE_RETURN_IF_ERROR(shale::c::GiveStruct(out, report, "report"));
    SHALE_ASSIGN_OR_RETURN(const shale::StepReport done, t.Step());
    out = shale::c::CReport(done);
    return report == nullptr ? absl::OkStatus() : shale::c::GiveStruct(out, report, "report");
  });
}

shale_code shale_trainer_evaluate(shale_trainer trainer, int64_t sequences, shale_evaluation_report* report,
                                  shale_error* error) {
  return CallWith(trainer, error, [&](Trainer& t) -> absl::Status {
    if (sequences < 1) return absl::InvalidArgumentError(absl::StrCat("sequences is ", sequences, "; at least 1"));
    SHALE_ASSIGN_OR_RETURN(const shale::EvaluationReport done, t.Evaluate(sequences));
    shale_evaluation_report out = SHALE_INIT(shale_evaluation_report);
    out.step = done.step;
    out.loss = done.loss;
    out.tokens = done.tokens;
    return shale::c::GiveStruct(out, report, "report");
  });
}

shale_code shale_trainer_run(shale_trainer trainer, int32_t (*on_step)(void* user, const shale_step_report* report),
                             void* user, shale_error* error) {
  return CallWith(trainer, error, [&](Trainer& t) -> absl::Status {
    shale::TrainCallbacks callbacks;
    if (on_step != nullptr) {
      callbacks.on_step = [&](const shale::StepReport& report) {
        const shale_step_report out = shale::c::CReport(report);
        if (on_step(user, &out) != 0) t.RequestStop();
        return absl::OkStatus();
      };
    }
    return t.Run(callbacks);
  });
}

shale_code shale_trainer_save(shale_trainer trainer, char* buffer, size_t capacity, size_t* needed,
                              shale_error* error) {
  return CallWith(trainer, error, [&](Trainer& t) -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const std::string path, t.SaveCheckpoint());
    if (buffer == nullptr && needed == nullptr) return absl::OkStatus();
    return shale::c::GiveText(path, buffer, capacity, needed);
  });
}

shale_code shale_trainer_request_stop(shale_trainer trainer, shale_error* error) {
  return shale::c::Call(error, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const auto shared, shale::c::Trainers().Share(trainer));
    shared->trainer->RequestStop();
    return absl::OkStatus();
  });
}

shale_code shale_trainer_get_state(shale_trainer trainer, shale_trainer_state* state, shale_error* error) {
  return CallWith(trainer, error, [&](Trainer& t) { return shale::c::GiveStruct(shale::c::State(t), state, "state"); });
}

shale_code shale_trainer_job_text(shale_trainer trainer, char* buffer, size_t capacity, size_t* needed,
                                  shale_error* error) {
  return CallWith(trainer, error, [&](Trainer& t) {
    return shale::c::GiveText(shale::ResolvedJobText(t.job()), buffer, capacity, needed);
  });
}

shale_code shale_trainer_plan_text(shale_trainer trainer, int32_t form, char* buffer, size_t capacity, size_t* needed,
                                   shale_error* error) {
  return shale::c::Call(error, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const auto used, shale::c::Trainers().Take(trainer));
    const Trainer& t = *used->trainer;
    SHALE_ASSIGN_OR_RETURN(const std::string text, shale::c::PlanIn(form, t.job(), t.plan(), used->backend->machine()));
    return shale::c::GiveText(text, buffer, capacity, needed);
  });
}

shale_code shale_trainer_get_parameter(shale_trainer trainer, int64_t index, shale_parameter* parameter,
                                       shale_error* error) {
  return CallWith(trainer, error, [&](Trainer& t) -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const shale_parameter found, shale::c::ParameterAt(t, index));
    return shale::c::GiveStruct(found, parameter, "parameter");
  });
}

shale_code shale_trainer_free(shale_trainer trainer, shale_error* error) {
  return shale::c::Call(error, [&]() -> absl::Status {
    if (trainer == 0) return absl::OkStatus();
    SHALE_ASSIGN_OR_RETURN(auto kept, shale::c::Trainers().Share(trainer));
    SHALE_RETURN_IF_ERROR(shale::c::Trainers().Free(trainer));
    const std::shared_ptr<const std::vector<std::string>> lost = kept->events->lost();
    kept.reset();  // Destroys the trainer, unless shale_trainer_request_stop holds it.
    return lost->empty() ? absl::OkStatus() : absl::DataLossError(absl::StrJoin(*lost, "\n"));
  });
}

using shale::c::TakeValues;

shale_code shale_trainer_read_parameter(shale_trainer trainer, const char* name, int64_t begin, float* values,
                                        int64_t count, shale_error* error) {
  return CallWith(trainer, error, [&](Trainer& t) -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(name, "name"));
    SHALE_ASSIGN_OR_RETURN(const auto span, TakeValues(values, count));
    return t.state().ReadParameter(name, begin, span);
  });
}

shale_code shale_trainer_write_parameter(shale_trainer trainer, const char* name, int64_t begin, const float* values,
                                         int64_t count, shale_error* error) {
  return CallWith(trainer, error, [&](Trainer& t) -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(name, "name"));
    SHALE_ASSIGN_OR_RETURN(const auto span, TakeValues(values, count));
    return t.state().WriteParameter(name, begin, span);
  });
}

shale_code shale_trainer_optimizer_states(shale_trainer trainer, char* buffer, size_t capacity, size_t* needed,
                                          shale_error* error) {
  return CallWith(trainer, error, [&](Trainer& t) {
    return shale::c::GiveText(absl::StrJoin(t.state().optimizer_states(), "\n"), buffer, capacity, needed);
  });
}

shale_code shale_trainer_optimizer_state_count(shale_trainer trainer, const char* state, const char* parameter,
                                               int64_t* count, shale_error* error) {
  return CallWith(trainer, error, [&](Trainer& t) -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(state, "state"));
    SHALE_RETURN_IF_ERROR(Require(parameter, "parameter"));
    SHALE_RETURN_IF_ERROR(Require(count, "count"));
    SHALE_ASSIGN_OR_RETURN(*count, t.state().OptimizerStateElements(state, parameter));
    return absl::OkStatus();
  });
}

shale_code shale_trainer_read_optimizer_state(shale_trainer trainer, const char* state, const char* parameter,
                                              int64_t begin, float* values, int64_t count, shale_error* error) {
  return CallWith(trainer, error, [&](Trainer& t) -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(state, "state"));
    SHALE_RETURN_IF_ERROR(Require(parameter, "parameter"));
    SHALE_ASSIGN_OR_RETURN(const auto span, TakeValues(values, count));
    return t.state().ReadOptimizerState(state, parameter, begin, span);
  });
}

shale_code shale_trainer_write_optimizer_state(shale_trainer trainer, const char* state, const char* parameter,
                                               int64_t begin, const float* values, int64_t count, shale_error* error) {
  return CallWith(trainer, error, [&](Trainer& t) -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(state, "state"));
    SHALE_RETURN_IF_ERROR(Require(parameter, "parameter"));
    SHALE_ASSIGN_OR_RETURN(const auto span, TakeValues(values, count));
    return t.state().WriteOptimizerState(state, parameter, begin, span);
  });
}

shale_code shale_trainer_set_learning_rate(shale_trainer trainer, const double* rate, shale_error* error) {
  return CallWith(trainer, error, [&](Trainer& t) {
    return t.SetLearningRate(rate == nullptr ? std::nullopt : std::optional<double>(*rate));
  });
}

shale_code shale_trainer_set_data(shale_trainer trainer, const shale_data* data, shale_error* error) {
  return shale::c::Call(error, [&]() -> absl::Status {
    SHALE_ASSIGN_OR_RETURN(const auto used, shale::c::Trainers().Take(trainer));
    SHALE_ASSIGN_OR_RETURN(auto source, shale::c::MakeDataSource(data, "data"));
    SHALE_RETURN_IF_ERROR(used->trainer->SetData(source.get()));
    used->data = std::move(source);
    return absl::OkStatus();
  });
}

shale_code shale_trainer_add_metric(shale_trainer trainer, const char* name, double value, shale_error* error) {
  return CallWith(trainer, error, [&](Trainer& t) -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(name, "name"));
    return t.AddMetric(name, value);
  });
}

shale_code shale_trainer_generate(shale_trainer trainer, const int32_t* prompt, size_t prompt_tokens, int64_t count,
                                  const shale_sampling* sampling, int32_t (*on_token)(void* user, int32_t token),
                                  void* user, shale_error* error) {
  return CallWith(trainer, error, [&](Trainer& t) -> absl::Status {
    SHALE_RETURN_IF_ERROR(Require(prompt, "prompt"));
    if (on_token == nullptr) return absl::InvalidArgumentError("on_token is NULL");
    SHALE_ASSIGN_OR_RETURN(const shale::SamplingOptions options, shale::c::TakeSampling(sampling));
    return t.generator().Generate(absl::MakeConstSpan(prompt, prompt_tokens), count, options,
                                  [&](int32_t token) { return on_token(user, token) == 0; });
  });
}
