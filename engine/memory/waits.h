// Waits order the instructions of different streams in a planned program.
#pragma once

#include "engine/memory/plan.h"
#include "engine/program/program.h"

namespace shale {

// Fills in every instruction's `waits` from the byte ranges that instructions read and write. A read waits for the last
// write of its bytes. A write waits for the last write and for all reads since then. Waits within a stream are left
// out, and so are those that earlier waits and FIFO order already imply. This orders both the flow of data and the
// reuse of addresses.
//
// A wait names an instruction and refers to that instruction's most recent issue, if there was any. In a loop, that may
// be the issue of the preceding iteration; the instruction that is waited for then has the larger number. Every issue
// that is waited for comes earlier in issue order, so waits cannot form a cycle. Waits are sorted in ascending order.
//
// [Note: three iterations are enough] Loops are simulated for min(K, 3) iterations, and an instruction gets the waits
// that any of these iterations needs. The first iteration may depend on instructions before the loop. The last one may
// issue instructions that the others do not. All iterations between them are alike: the instructions that one of them
// must wait for were issued in the same or in the preceding iteration, and so were the waits and the FIFO order that
// may make a wait redundant. Shifted by one iteration, these still make it redundant.
//
// Operands whose place depends on the rank or the micro-batch count as their whole buffer.
void DeriveWaits(StepProgram& program, const MemoryPlan& plan);

}  // namespace shale
