// The rules that every program must satisfy before other code works on it.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "engine/compile/program/program.h"

namespace shale {

// Checks that the loops cover the instructions in order, that sizes are not negative and the bytes of each buffer fit
// int64, that operands name existing buffers in the right kind of memory and lie inside them, that transfers move
// contiguous tensors of equal size, and that slots exist for every micro-batch that uses one. The error names the
// buffer, or the instruction and the operand.
absl::Status CheckStructure(const StepProgram& program);

// Checks that every wait names an instruction of another stream that is issued earlier: before it in the program, or in
// the preceding iteration of the same loop. Waits then form no cycle. REQUIRES: CheckStructure accepts the program.
absl::Status CheckWaits(const StepProgram& program);

// Returns for example "instruction 57 (MatMul, compute stream, unit blocks.3, backward)".
std::string Describe(const StepProgram& program, InstructionId id);

}  // namespace shale
