// Which accumulations a strategy has.
#pragma once

#include "absl/status/status.h"
#include "engine/step/options_enums.h"

namespace shale {

// Returns InvalidArgument for an accumulation that does not exist for the strategy, with the name of the one that does
// the same:
//   DDP, ZERO1 with SHARDED -> ZERO2 with SHARDED;  ZERO2 with NO_SYNC -> ZERO1 with NO_SYNC.
// AUTO goes with each.
absl::Status CheckCombination(Strategy strategy, Accumulation accumulation);

}  // namespace shale
