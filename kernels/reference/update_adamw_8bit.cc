#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/dynamic_map.h"
#include "kernels/ops/update.h"
#include "kernels/reference/element.h"
#include "kernels/reference/update.h"

namespace shale::reference {
namespace {

// The values of one block of a state.
using Block = std::array<double, kQuantizedBlock>;

template <class Map>
void Widen(const uint8_t* codes, float scale, int64_t count, Block& values) {
  for (int64_t k = 0; k < count; ++k) values[k] = static_cast<double>(Map::ValueOf(codes[k])) * scale;
}

// Returns the level to which `x` is rounded: the nearest one that it may take, and 0 for a NaN. Of two levels that are
// equally near it returns the lower.
template <class Map>
int RoundedLevel(double x) {
  static const auto boundaries = [] {
    std::array<float, Map::kLevels - 1> made;
    for (int level = 0; level < Map::kLevels - 1; ++level) made[level] = Map::BoundaryAbove(level);
    return made;
  }();
  const int level = static_cast<int>(std::lower_bound(boundaries.begin(), boundaries.end(), x) - boundaries.begin());
  return x > 0 ? std::max(level, Map::kLowestOfPositive) : level;
}

// Stores `count` values as codes, and returns their scale.
template <class Map>
float Quantize(const Block& values, int64_t count, uint8_t* codes) {
  double largest = 0;
  for (int64_t k = 0; k < count; ++k) {
    const double magnitude = std::abs(values[k]);
    if (magnitude > largest || std::isnan(magnitude)) largest = magnitude;
  }
  const float scale = static_cast<float>(largest);
  for (int64_t k = 0; k < count; ++k) {
    // If the scale is 0, the ratio is NaN, which gives level 0.
    const int level = RoundedLevel<Map>(std::abs(values[k]) / static_cast<double>(scale));
    codes[k] = static_cast<uint8_t>(Map::CodeOf(level, values[k] < 0));
  }
  return scale;
}

}  // namespace

void Apply(const AdamW8BitRule& rule, const Update& op, const UpdateStep& step) {
  const double beta1 = rule.beta1, beta2 = rule.beta2;
  const int64_t n = op.weight_P.dim(0);
  uint8_t *m_codes = op.states[0].as<uint8_t>(), *v_codes = op.states[1].as<uint8_t>();
  float *m_scales = op.states[2].as<float>(), *v_scales = op.states[3].as<float>();
  Block ms, vs;
  for (int64_t begin = 0; begin < n; begin += kQuantizedBlock) {
    const int64_t block = begin / kQuantizedBlock, count = std::min(kQuantizedBlock, n - begin);
    Widen<SignedMap>(m_codes + begin, m_scales[block], count, ms);
    Widen<UnsignedMap>(v_codes + begin, v_scales[block], count, vs);
    for (int64_t k = 0; k < count; ++k) {
      const int64_t i = begin + k;
      const double g = Get(op.gradient_P, i) * step.gradient_factor;
      ms[k] += (1 - beta1) * (g - ms[k]);
      vs[k] = beta2 * vs[k] + (1 - beta2) * g * g;
      PutMaster(op, i, DecayedMaster(op, i, step, rule.weight_decay) - AdamWStep(step, rule.epsilon, ms[k], vs[k]));
    }
    m_scales[block] = Quantize<SignedMap>(ms, count, m_codes + begin);
    v_scales[block] = Quantize<UnsignedMap>(vs, count, v_codes + begin);
  }
}

}  // namespace shale::reference
