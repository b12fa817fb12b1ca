// What a device's matrix products reach: the yardstick of MFU for a job that names none.
#pragma once

#include "absl/status/statusor.h"
#include "engine/runtime/backend.h"
#include "kernels/dtype.h"

namespace shale {

// FLOP/s of one of `ranks` ranks in products of `dtype` (f32 or bf16), or its share of those of the device that several
// have together: Backend::NominalPeakFlops where it is known, else the best of repeated products of square matrices
// that take milliseconds, measured for about a third of a second.
absl::StatusOr<double> PeakFlops(const Backend& backend, DType dtype, int64_t ranks);

}  // namespace shale
