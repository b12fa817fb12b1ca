// Measures what computes matmuls fastest on this processor.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "kernels/cpu_matmuls.h"
#include "kernels/dtype.h"

namespace shale {

struct MeasuredMatMuls {
  CpuMatMuls cpu_matmuls = CpuMatMuls::kAuto;  // kPacked if it is faster by 5 % at least.
  double packed_speed = 0;  // The speed of kPacked, divided by that of kOneDnn; 0 if nothing had to be measured.
};

// Times matmuls of `dtype` (f32 or bf16) in the shapes of a forward and of a weight's gradient, by each kind in turn,
// for about 0.2 seconds of the calling thread. Uses no other thread: the ratio of the speeds hardly depends on the
// number of threads, and a choice that did would change the bits of a run with its number of ranks. Returns oneDNN's
// errors.
// REQUIRES: CheckInstructionSetLimit() is OK.
absl::StatusOr<MeasuredMatMuls> MeasureCpuMatMuls(DType dtype);

// Returns a text without spaces or slashes that names all that the result of MeasureCpuMatMuls depends on: processor,
// instruction sets, oneDNN's version, and the version of our own kernels.
std::string CpuMatMulsKey(DType dtype);

}  // namespace shale
