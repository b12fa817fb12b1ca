// Axes: the fields that the search changes, each with the settings among which it chooses. Private to this package.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/plan/config/job.h"
#include "engine/plan/planner/options.h"

namespace shale::internal {

struct Axis {
  absl::string_view path;  // The field that it sets, or that stands for those that it sets.
  // Returns all settings of the field for `job`, those that need the most memory first. None where it does not apply.
  std::vector<Settings> (*settings)(const Job& job);
};

// Returns the axes. No setting changes what the job trains, apart from the order in which sums are rounded.
absl::Span<const Axis> Axes();

// Positions in Axes of the two that the search changes together.
inline constexpr size_t kMicroBatchAxis = 0, kCheckpointingAxis = 1;

// Returns the settings of activation checkpointing that apply `preset` and these fields of the same message, and leave
// out all its other fields.
Settings CheckpointingOf(absl::string_view preset, const std::vector<Override>& fields = {});

}  // namespace shale::internal
