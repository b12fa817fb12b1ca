// What NVIDIA's data sheets promise of GPUs.
#pragma once

#include "absl/strings/string_view.h"
#include "kernels/dtype.h"

namespace shale {

// Returns the peak FLOP/s of dense matmuls of `dtype` with sums in fp32, by the whole name that CUDA gives the device.
// `tf32`: fp32 operands are rounded to TF32. Returns 0 for any other name, such as that of a slice of a GPU (MIG), of
// which nothing is promised, and for other dtypes.
double NominalPeakOf(absl::string_view device_name, DType dtype, bool tf32);

}  // namespace shale
