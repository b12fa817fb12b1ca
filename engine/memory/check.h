// Proves, for one compiled and planned program, that no byte can be overwritten while somebody needs it.
#pragma once

#include "absl/status/status.h"
#include "engine/memory/plan.h"
#include "engine/step/program.h"

namespace shale {

// Independent of DeriveWaits: computes what happens before what from FIFO order and `waits` alone (loops are unrolled far
// enough for every pair of passes that can meet), and checks that of any two accesses to one byte, at least one a write,
// one happens before the other, in issue order; that every read finds bytes that were written by the same buffer before
// (or the buffer is persistent); that waits name instructions that exist and form no cycle; that operands lie inside
// their buffers, and buffers inside the plan. The error names both instructions, the buffers and the bytes.
absl::Status CheckProgram(const StepProgram& program, const MemoryPlan& plan);

}  // namespace shale
