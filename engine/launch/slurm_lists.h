// Reads the lists in which Slurm describes the nodes of a job step.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace shale {

// Returns the first host of a list such as "gpu[07-09,12],login1" (SLURM_STEP_NODELIST): "gpu07". Returns
// InvalidArgument if the list is malformed or empty.
absl::StatusOr<std::string> FirstHost(absl::string_view nodes);

// Returns the tasks on each node from a list such as "2(x3),1" (SLURM_STEP_TASKS_PER_NODE): {2, 2, 2, 1}. Returns
// InvalidArgument if the list is malformed or has more than 1,000,000 nodes.
absl::StatusOr<std::vector<int>> TasksOnNodes(absl::string_view tasks);

}  // namespace shale
