// Tells from a rank's last notes whether the update of a step may have changed its state.
#pragma once

#include <vector>

#include "engine/runtime/instruction_ring.h"

namespace shale {

// Returns false if the rank's weights and optimizer state are certainly those from before the run that it began last:
// a collective that the first write to them waits for has not finished. `notes` are those of its InstructionRing.
// Returns true if that cannot be said, as for a rank that has not made a note.
bool UpdateMayHaveBegun(const std::vector<InstructionNote>& notes);

}  // namespace shale
