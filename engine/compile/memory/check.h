// Proves for one compiled and planned program that no byte can be overwritten while it is still needed.
#pragma once

#include "absl/status/status.h"
#include "engine/compile/memory/plan.h"
#include "engine/compile/program/program.h"
#include "engine/compile/program/work_limits.h"

namespace shale {

// Computes the order of all accesses from the FIFO order of streams and from `waits` alone, without DeriveWaits, and
// checks that
// - operands lie inside their buffers, and buffers that are used lie inside the plan;
// - every wait names an instruction of another stream that is issued earlier, so that waits form no cycle;
// - if two instructions access the same byte and at least one of them writes it, the one issued first has finished
// before the other one starts;
// - a read finds the bytes that the last writer of its own buffer left there, not bytes that were never written or that
// belong to another buffer. Persistent buffers count as written from the start. A strided operand counts with its gaps;
// - an instruction does not write bytes on which another of its operands lies, unless both are in the same buffer.
//
// Loops are unrolled for min(K, 5) iterations: the first two, two that stand for all iterations in the middle, and the
// last. This is more than [Note: three iterations are enough] in waits.h requires. Operands whose place depends on the
// rank or the micro-batch count as their whole buffer in the third and the fifth check. The fourth check uses their
// place on rank 0. For an iteration that stands for several iterations, it uses all bytes from the slot of the first
// one to the slot of the last one.
//
// Returns Internal for the first violation. The message names both instructions, their buffers and the bytes. Returns
// the error of `limits`, which it looks at instruction by instruction, if the work must end.
absl::Status CheckProgram(const StepProgram& program, const MemoryPlan& plan, const WorkLimits& limits = {});

}  // namespace shale
