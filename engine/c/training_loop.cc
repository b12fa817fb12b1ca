// What a program does between the steps of a trainer: it reads and writes the state, changes the learning rate and the
// data, adds metrics, and generates.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "engine/api/trainer.h"
#include "engine/c/calls.h"
#include "engine/c/data.h"
#include "engine/c/sampling.h"
#include "engine/c/shale.h"
#include "engine/c/trainers.h"
#include "kernels/check.h"

namespace shale::c {
namespace {

// Returns the values of the caller as a span.
template <class T>
absl::StatusOr<absl::Span<T>> TakeValues(T* values, int64_t count) {
  SHALE_RETURN_IF_ERROR(Require(values, "values"));
  if (count < 0) return absl::InvalidArgumentError(absl::StrCat("count is ", count));
  return absl::Span<T>(values, static_cast<size_t>(count));
}

}  // namespace
}  // namespace shale::c

using shale::Trainer;
using shale::c::CallWith;
using shale::c::Require;
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
