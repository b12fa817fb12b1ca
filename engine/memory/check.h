// Proves, for one compiled and planned program, that no byte can be overwritten while somebody needs it.
#pragma once

#include "absl/status/status.h"
#include "engine/memory/plan.h"
#include "engine/program/program.h"

namespace shale {

// Independent of DeriveWaits: computes what happens before what from FIFO order and `waits` alone, and checks
// - that operands lie inside their buffers, and buffers that are used inside the plan;
// - that a wait names an instruction of another stream that is issued before, so that waits form no cycle;
// - that of any two accesses to one byte, at least one of them a write, the one issued first has finished before the
//   other starts;
// - that a read finds bytes that its own buffer's last writer left there: none that were never written, and none of
//   another buffer. Persistent buffers are written from the start. A strided operand counts with its gaps.
// Loops are unrolled for min(K, 5) iterations: the first two, two that stand for all between, and the last. That is
// more than [Note: three iterations are enough] in waits.h asks for. Operands whose place depends on the rank or the
// micro-batch count as their whole buffer in the third point; in the fourth as rank 0 sees them, and where a iteration
// stands for several, as the bytes from the first one's slot to the last one's.
//
// Internal: the first violation, with both instructions, their buffers and the bytes.
absl::Status CheckProgram(const StepProgram& program, const MemoryPlan& plan);

}  // namespace shale
