#include "kernels/reference/rope_frequency.h"

#include <cmath>
#include <numbers>

#include "kernels/ops/rope.h"

namespace shale {

double RopeFrequency(double theta, const RopeScaling& scaling, int64_t i, int64_t width) {
  const double frequency = std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(width));
  if (scaling.factor == 1) return frequency;
  // The number of turns of the pair within the context that the model was trained on.
  const double turns = static_cast<double>(scaling.original_context) * frequency / (2 * std::numbers::pi);
  if (turns > scaling.high_freq_factor) return frequency;
  if (turns < scaling.low_freq_factor) return frequency / scaling.factor;
  const double kept = scaling.high_freq_factor == scaling.low_freq_factor
                          ? 1
                          : (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor);
  return kept * frequency + (1 - kept) * frequency / scaling.factor;
}

}  // namespace shale
