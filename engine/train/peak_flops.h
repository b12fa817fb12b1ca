// Finds the peak FLOP/s of a device. MFU is a fraction of it if the job does not set telemetry.peak_flops.
#pragma once

#include "absl/status/statusor.h"
#include "engine/runtime/backend.h"
#include "kernels/dtype.h"

namespace shale {

// Returns the peak FLOP/s of one rank in matmuls of `dtype` (f32 or bf16), when the job has `ranks` ranks. Ranks that
// share a device divide its FLOP/s equally. Takes Backend::NominalPeakFlops if it is known. Otherwise multiplies square
// matrices of growing size until a matmul takes milliseconds, and returns the FLOP/s of the fastest one. Measuring
// takes about a third of a second for each size.
absl::StatusOr<double> PeakFlops(const Backend& backend, DType dtype, int64_t ranks);

}  // namespace shale
