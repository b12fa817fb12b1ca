// Decides whether kernels use the instructions for bf16: AVX512-BF16 and AMX. Highway 1.0.3 does not check whether the
// processor has them.
#pragma once

#include "kernels/cpu/instruction_set.h"

namespace shale::cpu {

// Return true if the processor has the instructions, SHALE_MAX_CPU_ISA allows them (see instruction_set.h), and they
// are not forbidden. Thread-safe.
bool MayUseBFloat16Instructions();
bool MayUseAmx();

// Forbids, of these instructions, the ones that `highest` does not have, or allows them again, in the whole process.
// Tests use it to act as a processor without them. REQUIRES: no op is running.
void ForbidInstructionsAbove(InstructionSet highest);

}  // namespace shale::cpu
