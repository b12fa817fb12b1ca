// Waits order the instructions of different streams in a planned program.
#pragma once

#include "engine/compile/memory/plan.h"
#include "engine/compile/program/program.h"

namespace shale {

// Fills in every instruction's `waits` from the byte ranges that instructions read and write. A read waits for the last
// write of its bytes. A write waits for the last write and for all reads since then. Waits within a stream are left
// out, and so are those that earlier waits and FIFO order already imply. This orders both the flow of data and the
// reuse of addresses.
//
// A wait names an instruction and means its most recent issue, if there was any. In a loop, an instruction may wait for
// a later one: that means the issue of the preceding iteration. Every issue that is waited for comes earlier in issue
// order, so waits cannot form a cycle. Waits are sorted in ascending order.
//
// [Note: three iterations are enough] Loops are simulated for min(K, 3) iterations, and an instruction gets the waits
// that any of these iterations needs: the first one, which may depend on instructions before the loop; one from the
// middle; and the last one, which may issue instructions that the others do not. One from the middle stands for all: an
// instruction waits only for issues of the same or the preceding iteration, and the waits that make another one
// redundant are of these two as well. So each iteration from the middle has the waits of the one before it, shifted by
// one.
//
// Operands whose place depends on the rank or the micro-batch count as their whole buffer.
void DeriveWaits(StepProgram& program, const MemoryPlan& plan);

}  // namespace shale
