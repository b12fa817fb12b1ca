// How long a rank's computation has waited for other ranks.
#pragma once

#include <cstdint>

#include "engine/runtime/rank_runtime.h"

namespace shale {

// Returns how long the compute stream has waited so far for work of the rank's other streams: collectives, which wait
// for other ranks, and copies. 0 on devices other than CPUs, which do not measure it. Call it on the rank's launching
// thread, or after the rank's programs have ended.
int64_t BlockedNs(RankRuntime& rank);

}  // namespace shale
