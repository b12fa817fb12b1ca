#include "engine/train/initial_values.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace shale {
namespace {

// SplitMix64 (Steele et al., 2014): a bijective mix, used as a counter generator.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// FNV-1a, so that a parameter's values depend on its name and not on its place in the model.
uint64_t Hash(absl::string_view name) {
  uint64_t hash = 0xcbf29ce484222325;
  for (unsigned char c : name) hash = (hash ^ c) * 0x100000001b3;
  return hash;
}

// In (0, 1].
double Uniform(uint64_t bits) { return (static_cast<double>(bits >> 11) + 1.0) * 0x1p-53; }

// Standard normal values by Box and Muller; elements 2i and 2i + 1 share a pair.
void FillNormal(uint64_t key, int64_t begin, double deviation, absl::Span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) {
    const uint64_t element = static_cast<uint64_t>(begin) + i;
    const uint64_t pair = element / 2;
    const double radius = std::sqrt(-2.0 * std::log(Uniform(Mix(key + 2 * pair))));
    const double angle = 2.0 * std::numbers::pi * Uniform(Mix(key + 2 * pair + 1));
    if (element % 2 == 0 && i + 1 < values.size()) {
      values[i] = static_cast<float>(deviation * radius * std::cos(angle));
      values[++i] = static_cast<float>(deviation * radius * std::sin(angle));
    } else {
      values[i] = static_cast<float>(deviation * radius * (element % 2 == 0 ? std::cos(angle) : std::sin(angle)));
    }
  }
}

}  // namespace

void FillInitialValues(const Parameter& parameter, uint64_t seed, int64_t begin, absl::Span<float> values) {
  if (parameter.initializer.kind == Initializer::Kind::kNormal) {
    return FillNormal(Mix(seed ^ Hash(parameter.name)), begin, parameter.initializer.standard_deviation, values);
  }
  std::fill(values.begin(), values.end(), parameter.initializer.kind == Initializer::Kind::kOnes ? 1.0f : 0.0f);
}

}  // namespace shale
