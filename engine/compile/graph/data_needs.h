// What a model's graph wants of its data.
#pragma once

#include <cstdint>

#include "engine/compile/graph/graph.h"

namespace shale {

struct DataNeeds {
  int64_t input_ids = 0;      // Input tokens must lie below it: the rows of the smallest table that is indexed by them.
  int64_t target_ids = 0;     // Target tokens or classes must lie below it: the columns of the logits.
  int64_t features = 0;       // Features of a position. 0: the graph reads none.
  int64_t target_values = 0;  // Target values of a position. 0: the graph reads none.
  bool last_target_only = false;
  TargetWeights target_weights = TargetWeights::kNone;
  bool position_ids = false;
};

// Returns the needs of a graph of mode kTraining or kEvaluation.
DataNeeds NeedsOf(const ModelGraph& graph);

}  // namespace shale
