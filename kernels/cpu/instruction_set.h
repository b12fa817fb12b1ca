// The instruction sets of x86 processors that the CPU kernels distinguish, and a limit on them.
//
// The environment variable SHALE_MAX_CPU_ISA makes a process act as an older processor: its kernels use no newer
// instructions than the set that it names, and oneDNN neither. Tests and benches use it. The variable is read once.
// (ONEDNN_MAX_CPU_ISA limits oneDNN alone. If both are set, oneDNN follows SHALE_MAX_CPU_ISA.)
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace shale::cpu {

enum class InstructionSet {
  kSse4,            // SSE4: kernels are compiled for any x86-64 processor; oneDNN uses SSE4.1.
  kAvx2,            // AVX2 and FMA.
  kAvx512,          // AVX512: the F, BW, CD, DQ and VL parts of AVX-512.
  kAvx512BFloat16,  // AVX512_BF16: AVX512 and the instructions that multiply bf16.
  kAmx              // AMX: AVX512_BF16 and the tile registers that multiply bf16.
};

// Returns the name by which SHALE_MAX_CPU_ISA gives the instruction set.
absl::string_view ToString(InstructionSet set);

// Returns InvalidArgument if SHALE_MAX_CPU_ISA is set to anything but a name of an instruction set.
absl::Status CheckInstructionSetLimit();

// Returns the instruction set that SHALE_MAX_CPU_ISA names, if it is set. REQUIRES: CheckInstructionSetLimit() is OK.
std::optional<InstructionSet> InstructionSetLimit();

// Returns the best instruction set that the processor has, whatever the limit is. Asks for AMX as UsedInstructionSet()
// does.
InstructionSet ProcessorInstructionSet();

// Limits Highway's kernels as SHALE_MAX_CPU_ISA says, and returns the best instruction set that the processor has and
// the limit allows. Asks the Linux kernel for the permission to use AMX, which holds for the whole process; AMX counts
// as missing if the kernel refuses. Later calls only return the result. Call it before the first kernel runs;
// CreateCpuOps does. Thread-safe. REQUIRES: CheckInstructionSetLimit() is OK.
InstructionSet UsedInstructionSet();

}  // namespace shale::cpu
