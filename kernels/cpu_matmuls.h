// OpsKind: which kernels a rank runs. CpuMatMuls: what computes matmuls on the CPU.
#pragma once

#include "absl/strings/string_view.h"

namespace shale {

enum class OpsKind {
  kFast,       // oneDNN and vector kernels.
  kReference,  // Plain loops with wide accumulation: the specification.
};

enum class CpuMatMuls {
  kAuto,  // Not decided yet.
  // oneDNN; bf16 with the processor's bf16 instructions, or as kPacked if it has none. With AVX-512, matmuls of f32
  // with long rows of a transposed a run as kPacked too, and f16 always does (kernels/cpu/matmul.cc).
  kOneDnn,
  // Kernels of our own, which widen bf16 and f16 to f32 while they copy operands (kernels/cpu/packed_matmul.h).
  // Attention then widens bf16 too.
  kPacked
};

// Returns the name by which runtime.cpu_matmuls of a job gives it.
inline absl::string_view ToString(CpuMatMuls cpu_matmuls) {
  switch (cpu_matmuls) {
    case CpuMatMuls::kAuto: return "AUTO";
    case CpuMatMuls::kOneDnn: return "ONEDNN";
    case CpuMatMuls::kPacked: return "PACKED";
  }
  return "";
}

}  // namespace shale
