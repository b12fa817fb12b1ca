// What this machine's matrix products reach: the yardstick of MFU for a job that names none.
#pragma once

#include "absl/status/statusor.h"
#include "kernels/dtype.h"

namespace shale {

// FLOP/s of one rank with `threads` threads: the best of repeated products of large square matrices of `dtype` (f32 or
// bf16), for about a third of a second.
absl::StatusOr<double> MeasurePeakFlops(DType dtype, int threads);

}  // namespace shale
