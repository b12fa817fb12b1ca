// The FLOP/s that a device's matmuls reach. MFU is measured against it if the job does not set telemetry.peak_flops.
#pragma once

#include "absl/status/statusor.h"
#include "engine/runtime/backend.h"
#include "kernels/dtype.h"

namespace shale {

// Returns the FLOP/s that one of `ranks` ranks reaches in matmuls of `dtype` (f32 or bf16); if ranks share a device,
// its share of the device's. Returns Backend::NominalPeakFlops where it is known, else measures: the best of repeated
// matmuls of square matrices that take milliseconds, within about a third of a second for each size that it tries.
absl::StatusOr<double> PeakFlops(const Backend& backend, DType dtype, int64_t ranks);

}  // namespace shale
