// Decides whether kernels use the AVX512-BF16 instructions. Highway 1.0.3 does not check whether the processor has
// them.
#pragma once

namespace shale::cpu {

// Returns true if the processor has the instructions, SHALE_MAX_CPU_ISA allows them (see instruction_set.h), and they
// are not forbidden. Thread-safe.
bool MayUseBFloat16Instructions();

// Forbids the instructions, or allows them again, in the whole process. Tests use it to act as a processor without
// them. REQUIRES: no op is running.
void ForbidBFloat16Instructions(bool forbidden);

}  // namespace shale::cpu
