// Lets activations wait for their backward in the host's memory.
#pragma once

#include <string>
#include <vector>

#include "engine/program/program.h"

namespace shale {

// Takes the activations of units and between units whose names match one of `patterns` (engine/step/pattern.h). After
// its last use in forward such a tensor is copied to a host buffer, and before its backward into a new buffer of the
// arena, both on the copy stream; in between it takes no room in the arena.
//
// A visit is what the compute stream does for a unit without a break (engine/step/visits.h). In segments, a boundary is
// fetched for the visit that runs forward again, and what that keeps for a later one may go to the host too. The first
// buffer is held for one visit more, so that the copy need not be waited for, and the second is filled one visit
// ahead; in LAYERED, where a visit is a loop of its own, neither is. What is used again within four visits (LAYERED:
// two) would save nothing, and stays where it is; so does what backward writes to.
//
// Bits do not change. Call it before WorkInPlace, and before waits are derived. The program's structure must be right
// (engine/program/structure.h).
void OffloadActivations(StepProgram& program, const std::vector<std::string>& patterns);

}  // namespace shale
