// The ranks of the comm bench that are connected as ranks of different processes are.
#pragma once

#include "absl/status/statusor.h"
#include "tools/bench/comm.h"

namespace shale {

// Returns ranks on CPUs that all run in this process, and are connected over TCP, by Gloo, as if each had a process of
// its own. What a process of its own costs besides, such as a table of pages, is not measured.
absl::StatusOr<CommRanks> GlooRanks(int ranks, int ranks_per_device);

}  // namespace shale
