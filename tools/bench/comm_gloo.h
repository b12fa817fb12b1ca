// The ranks of the comm bench that Gloo connects.
#pragma once

#include "absl/status/statusor.h"
#include "engine/cluster/launch/joined_processes.h"
#include "tools/bench/comm.h"

namespace shale {

// Returns ranks on CPUs that Gloo connects. They read one another's memory, or exchange everything over TCP. They all
// run in this process if `joined` are only this one; otherwise each of its processes, which are on one host, has one.
absl::StatusOr<CommRanks> GlooRanks(JoinedProcesses& joined, int ranks, bool read_memory);

}  // namespace shale
