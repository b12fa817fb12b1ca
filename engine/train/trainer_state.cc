#include <algorithm>
#include <utility>

#include "engine/api/trainer_parts.h"
#include "engine/state/local_state.h"
#include "engine/train/run_health.h"
#include "kernels/check.h"

namespace shale {

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

absl::Status TrainerState::ReadGradient(absl::string_view name, absl::Span<float> values) const {
  SHALE_ASSIGN_OR_RETURN(const LocalState* state, Readable());
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, state->Find(name, std::ssize(values)));
  return state->ReadGradient(id, 0, values);
}

absl::Status TrainerState::ReadGradient(absl::string_view name, int64_t begin, absl::Span<float> values) const {
  SHALE_ASSIGN_OR_RETURN(const LocalState* state, Readable());
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, state->FindElements(name, begin, std::ssize(values)));
  return state->ReadGradient(id, begin, values);
}

std::vector<std::string> TrainerState::optimizer_states() const {
  std::vector<std::string> names;
  for (const UpdateState& state : state_.states()) names.emplace_back(state.name);
  return names;
}

absl::Status TrainerState::ReadOptimizerState(absl::string_view state, absl::string_view parameter, int64_t begin,
                                              absl::Span<float> values) const {
  SHALE_ASSIGN_OR_RETURN(const LocalState* all, Readable());
  SHALE_ASSIGN_OR_RETURN(const int index, all->FindState(state));
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, all->FindElements(parameter, begin, std::ssize(values)));
  return all->ReadState(index, id, begin, values);
}

absl::Status TrainerState::WriteOptimizerState(absl::string_view state, absl::string_view parameter, int64_t begin,
                                               absl::Span<const float> values) {
  SHALE_ASSIGN_OR_RETURN(LocalState * all, Writable(parameter));
  SHALE_ASSIGN_OR_RETURN(const int index, all->FindState(state));
  SHALE_ASSIGN_OR_RETURN(const ParameterId id, all->FindElements(parameter, begin, std::ssize(values)));
  return all->WriteState(index, id, begin, values);
}

}  // namespace shale
