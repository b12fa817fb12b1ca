// What every iteration over a program relies on.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "engine/program/program.h"

namespace shale {

// Checks that the loops cover the instructions in order; that sizes are no nonsense and the bytes of a buffer fit
// int64; that operands name buffers that exist and lie inside them; that slots exist for every micro-batch that asks
// for one. The error names the instruction and the operand.
absl::Status CheckStructure(const StepProgram& program);

// Checks that a wait names an instruction of another stream that is issued before, in the iteration before at the
// latest: then waits form no cycle. REQUIRES: CheckStructure accepts the program.
absl::Status CheckWaits(const StepProgram& program);

// "instruction 57 (MatMul, compute stream, unit blocks.3, backward)".
std::string Describe(const StepProgram& program, InstructionId id);

}  // namespace shale
