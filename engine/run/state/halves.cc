#include "engine/run/state/halves.h"

namespace shale {

void RoundMasters(const float* values, int64_t count, BFloat16* weights) {
  for (int64_t i = 0; i < count; ++i) weights[i] = RoundMaster(values[i]);
}

void TakeLowBits(const float* values, int64_t count, int16_t* low) {
  for (int64_t i = 0; i < count; ++i) low[i] = MasterLowBits(values[i], RoundMaster(values[i]));
}

}  // namespace shale
