// Rounds fp32 values to the weights that are computed with, and splits them into bf16 weights and low bits (JoinMaster
// in kernels/dtype.h).
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace shale {

// Stores each value at `weights` as an update does: RoundMaster of it for bf16, RoundToFloat16 for f16. REQUIRES: dtype
// is one of the two.
void RoundMasters(const float* values, int64_t count, DType dtype, void* weights);
// Stores MasterLowBits of each value and its RoundMaster.
void TakeLowBits(const float* values, int64_t count, int16_t* low);

}  // namespace shale
