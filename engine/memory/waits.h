// Orders the streams of a planned program.
#pragma once

#include "engine/memory/plan.h"
#include "engine/program/program.h"

namespace shale {

// Fills in every instruction's `waits` from the byte ranges that instructions read and write: a read waits for the last
// write of its bytes, a write for the last write and all reads since, if those are on another stream and not already
// implied by earlier waits and FIFO order. That covers both data and the reuse of addresses.
//
// An instruction that waits for another waits for its most recent issue, if there was any: in a loop that may be the
// one of the iteration before, and then the number waited for is the larger one. Every issue that is waited for comes
// before in issue order, so waits can form no cycle. Waits stand in ascending order.
//
// [Note: three iterations are enough] Loops are simulated for min(K, 3) iterations, and an instruction gets the waits
// that any of them needs. The first iteration may meet what lies before the loop; the last one may hold instructions
// that the others have not; the one between is like all others: what it must wait for was issued in itself or the
// iteration before, and so were the waits and the FIFO order that may make a wait superfluous. Shifted by a iteration,
// they still do.
//
// Operands whose place depends on the rank or the micro-batch count as their whole buffer.
void DeriveWaits(StepProgram& program, const MemoryPlan& plan);

}  // namespace shale
