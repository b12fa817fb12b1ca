// Says which ops may be to blame for wrong gradients.
#pragma once

#include <set>
#include <string>

#include "engine/graph/graph.h"

namespace shale {

// Backward runs from the last unit to the first. Returns where gradients go wrong there: the first op that writes a
// wrong gradient of a parameter, and the ops that computed what it reads, back to gradients from which a right gradient
// of a parameter was computed. `right` and `wrong` are names of parameters; others are not known. REQUIRES: `wrong` is
// not empty, and the graph is one of mode kTraining.
std::string WhereGradientsGoWrong(const ModelGraph& graph, const std::set<std::string>& right,
                                  const std::set<std::string>& wrong);

// Returns the op that computes the loss, with its unit: "CrossEntropy in unit head".
std::string LossOpOf(const ModelGraph& graph);

}  // namespace shale
