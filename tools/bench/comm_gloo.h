// The ranks of the comm bench that Gloo connects.
#pragma once

#include "absl/status/statusor.h"
#include "engine/launch/world.h"
#include "tools/bench/comm.h"

namespace shale {

// Returns ranks on CPUs that Gloo connects. They read one another's memory, or exchange everything over TCP. They all
// run in this process if `world` is alone in it; otherwise each of its processes, which are on one host, has one.
absl::StatusOr<CommRanks> GlooRanks(World& world, int ranks, bool read_memory);

}  // namespace shale
