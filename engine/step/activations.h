// Decides, for one unit, which values stay from forward to backward.
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "engine/step/options.h"

namespace shale {

// The value from which a node can compute its other outputs again (Node::from_sum); -1: it has none.
ValueId SumOf(const Node& node);

// By ValueId: true for the activations that the unit's backward reads, directly or to recompute others, and that are
// kept. Everything else that backward reads is computed again, from what is kept and the unit's input.
// `layers`: number of blocks in the model. The last unit keeps all: its backward follows its forward. In a segment,
// where a unit runs forward again, the values are kept from there to backward.
std::vector<bool> DecideKept(const UnitGraph& unit, bool last_unit, const ActivationOptions& options, int64_t layers);

}  // namespace shale
