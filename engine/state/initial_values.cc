#include "engine/state/initial_values.h"

#include <algorithm>
#include <cmath>

#include "engine/state/normal_pairs.h"
#include "kernels/hash.h"

namespace shale {
namespace {

// Fills `values` with normal values of standard deviation `deviation` (Box and Muller). Elements 2i and 2i + 1 share a
// pair.
void FillNormal(uint64_t key, int64_t begin, double deviation, absl::Span<float> values) {
  constexpr int64_t kPairs = 256;
  double u[kPairs], v[kPairs];
  float cosines[kPairs], sines[kPairs];
  const int64_t end = begin + static_cast<int64_t>(values.size());
  for (int64_t first = begin / 2; 2 * first < end; first += kPairs) {
    const int64_t count = std::min(kPairs, (end + 1) / 2 - first);
    UniformPairs(key, first, count, u, v);
    NormalPairs(deviation, u, v, count, cosines, sines);
    if (2 * first >= begin && 2 * (first + count) <= end) {  // The usual case, without a look at every element.
      float* const to = values.data() + (2 * first - begin);
      for (int64_t i = 0; i < count; ++i) {
        to[2 * i] = cosines[i];
        to[2 * i + 1] = sines[i];
      }
      continue;
    }
    for (int64_t i = 0; i < count; ++i) {
      const int64_t element = 2 * (first + i);
      if (element >= begin) values[element - begin] = cosines[i];
      if (element + 1 < end) values[element + 1 - begin] = sines[i];
    }
  }
}

// Fills `values` with uniform values of standard deviation `deviation` around 0.
void FillUniform(uint64_t key, int64_t begin, double deviation, absl::Span<float> values) {
  const double bound = std::sqrt(3.0) * deviation;
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<float>(bound * (2 * UniformOf(MixCounter(key + static_cast<uint64_t>(begin) + i)) - 1));
  }
}

}  // namespace

void FillInitialValues(const Parameter& parameter, uint64_t seed, int64_t begin, absl::Span<float> values) {
  const Initializer::Kind kind = parameter.initializer.kind;
  if (kind == Initializer::Kind::kOnes || kind == Initializer::Kind::kZeros) {
    std::fill(values.begin(), values.end(), kind == Initializer::Kind::kOnes ? 1.0f : 0.0f);
    return;
  }
  const auto fill = kind == Initializer::Kind::kNormal ? FillNormal : FillUniform;
  // The values of a parameter depend on its name, and not on its place in the model.
  fill(MixCounter(seed ^ Fnv1a(parameter.name)), begin, parameter.initializer.standard_deviation, values);
}

}  // namespace shale
