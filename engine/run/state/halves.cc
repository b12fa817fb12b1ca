#include "engine/run/state/halves.h"

#include <algorithm>

namespace shale {

void RoundMasters(const float* values, int64_t count, DType dtype, void* weights) {
  if (dtype == DType::kFloat16) {
    std::transform(values, values + count, static_cast<Float16*>(weights), RoundToFloat16);
  } else {
    std::transform(values, values + count, static_cast<BFloat16*>(weights), RoundMaster);
  }
}

void TakeLowBits(const float* values, int64_t count, int16_t* low) {
  for (int64_t i = 0; i < count; ++i) low[i] = MasterLowBits(values[i], RoundMaster(values[i]));
}

}  // namespace shale
