#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/api/data_source.h"
#include "engine/files/data/sample_parts.h"
#include "kernels/check.h"

namespace shale {
namespace {

constexpr size_t kLargestState = size_t{1} << 20;
// A checkpoint may need the state at the end of the last step that ran, while one step runs and another is read ahead.
// Each of the three ends with a state, and the first begins with one.
constexpr size_t kStates = 4;

}  // namespace

absl::Status PullSource::Pull(const SampleParts& out) {
  ForEachPart([&](const auto& part) { (sample_.*part.vector).clear(); });
  SHALE_ASSIGN_OR_RETURN(const bool found, Guarded("callback next", [&] { return callbacks_.next(sample_); }));
  if (!found) return absl::OutOfRangeError("the data ended here; give more, or fewer lr_schedule.steps");
  absl::Status status;
  ForEachPart([&](const auto& part) {
    const auto& from = sample_.*part.vector;
    const auto& to = out.*part.span;
    if (from.size() == to.size()) {
      std::copy(from.begin(), from.end(), to.begin());
      return;
    }
    status.Update(absl::InvalidArgumentError(
        absl::StrCat("callback next gave ", from.size(), " ", part.element, "s; wanted ", to.size())));
  });
  return status;
}

absl::Status PullSource::Read(int64_t, const SampleParts& out) {
  if (status_.ok()) status_ = Pull(out);
  return status_;
}

absl::Status PullSource::Keep(int64_t position) {
  if (!has_state()) return absl::OkStatus();
  SHALE_ASSIGN_OR_RETURN(std::string bytes, Guarded("callback save", callbacks_.save));
  if (bytes.size() > kLargestState) {
    return absl::ResourceExhaustedError(
        absl::StrCat("callback save returned a state of ", bytes.size(), " bytes; at most 1 MiB is recorded"));
  }
  const std::lock_guard lock(mutex_);
  states_.push_back({position, std::move(bytes)});
  if (states_.size() > kStates) states_.pop_front();
  return absl::OkStatus();
}

absl::Status PullSource::Start(int64_t position, const std::string* state) {
  if (!callbacks_.next) return absl::InvalidArgumentError("callback next is missing");
  {
    const std::lock_guard lock(mutex_);
    states_.clear();  // The source may have been in use before, at other positions.
  }
  if (state == nullptr) return Keep(position);
  if (!has_state()) return absl::InvalidArgumentError("callbacks save and restore are missing, so it cannot resume");
  SHALE_RETURN_IF_ERROR(Guarded("callback restore", [&] { return callbacks_.restore(*state); }));
  const std::lock_guard lock(mutex_);
  states_.push_back({position, *state});
  return absl::OkStatus();
}

absl::Status PullSource::EndStep(int64_t position) {
  if (status_.ok()) status_ = Keep(position);
  return status_;
}

std::string PullSource::StateAt(int64_t position) const {
  const std::lock_guard lock(mutex_);
  const auto found =
      std::find_if(states_.begin(), states_.end(), [&](const State& state) { return state.position == position; });
  SHALE_CHECK(found != states_.end()) << "no state is kept of position " << position;
  return found->bytes;
}

}  // namespace shale
