// Decides which activations of a unit stay from forward to backward.
#pragma once

#include <vector>

#include "engine/graph/graph.h"
#include "engine/step/options.h"

namespace shale {

// Returns the output `sum` of a node, from which Node::from_sum computes the other outputs again. Returns -1 if the
// node has no from_sum.
ValueId SumOf(const Node& node);

// Returns, by ValueId, whether the value is an activation that is kept from forward to backward. These are the
// activations that the unit's backward reads, directly or to recompute others, and that `options` allows to keep.
// Backward recomputes the other activations that it reads from the kept ones and the unit's input. The last unit
// recomputes nothing, because its backward follows its forward at once. A unit that runs forward again (in a segment)
// keeps these values from that second forward to backward. `layers` is the number of blocks in the model.
std::vector<bool> DecideKept(const UnitGraph& unit, bool last_unit, const ActivationOptions& options, int64_t layers);

}  // namespace shale
