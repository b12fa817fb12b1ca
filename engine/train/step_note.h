// What the processes of a job tell each other after each step.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

struct StepNote {
  bool stop = false;       // The process was asked to stop.
  int64_t peak_bytes = 0;  // The largest measured peak of its ranks.
  // How long each of its ranks has waited in the step (BlockedNs).
  std::vector<std::pair<int64_t, int64_t>> waited_ns;  // Rank and time.
};

std::string Serialize(const StepNote& note);
// Returns Internal if `message` is no note.
absl::StatusOr<StepNote> ParseStepNote(absl::string_view message);

}  // namespace shale
