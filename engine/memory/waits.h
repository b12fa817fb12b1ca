// Orders the streams of a planned program.
#pragma once

#include "engine/memory/plan.h"
#include "engine/step/program.h"

namespace shale {

// Fills in every instruction's `waits` from the byte ranges that instructions read and write: a read waits for the last
// write of its bytes, a write for the last write and all reads since, if those are on another stream and not already
// implied by earlier waits (FIFO order is). That covers both data and the reuse of addresses. Waits only ever point to
// instructions issued before, so they can form no cycle.
void DeriveWaits(StepProgram& program, const MemoryPlan& plan);

}  // namespace shale
