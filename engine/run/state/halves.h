// Splits fp32 values into bf16 weights and low bits (JoinMaster in kernels/dtype.h).
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace shale {

// Stores RoundMaster of each value.
void RoundMasters(const float* values, int64_t count, BFloat16* weights);
// Stores MasterLowBits of each value and its RoundMaster.
void TakeLowBits(const float* values, int64_t count, int16_t* low);

}  // namespace shale
