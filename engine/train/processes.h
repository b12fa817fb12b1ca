// What the processes of a job tell each other before they plan and allocate, so that all of them plan the same.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/memory/machine.h"
#include "sharding/comm/control_plane.h"

namespace shale {

// Returns `mine` with the smallest default budget of all processes' machines, each for a host of `ranks_on_host` of the
// job's `ranks` ranks. Every process makes the same call. With one process, returns `mine`. An error of a default
// budget becomes that of the result's, because a job may set its own.
absl::StatusOr<Machine> MachineOfAll(Machine mine, int64_t ranks, int64_t ranks_on_host, ControlPlane& control);

// Returns the process of each of the job's `ranks` ranks. `mine` are those of this process; with one process it may be
// empty. Every process makes the same call. Returns InvalidArgument in all processes if a rank is held by none or two.
absl::StatusOr<std::vector<int>> ProcessOfEachRank(const std::vector<int>& mine, int64_t ranks, ControlPlane& control);

}  // namespace shale
