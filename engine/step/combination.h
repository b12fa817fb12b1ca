// Which schedules a strategy has.
#pragma once

#include "absl/status/status.h"
#include "engine/step/options_enums.h"

namespace shale {

// InvalidArgument for a schedule that does not exist for the strategy, with the name of the one that does the same:
//   NONE, OPTIMIZER with SHARDED -> GRADIENTS with SHARDED;  GRADIENTS with DEFERRED -> OPTIMIZER with DEFERRED.
// AUTO goes with each.
absl::Status CheckCombination(Strategy strategy, Schedule schedule);

}  // namespace shale
