#include "engine/state/initial_values.h"

#include <algorithm>
#include <cmath>
#include <system_error>
#include <thread>
#include <vector>

#include "engine/state/normal_pairs.h"

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

// Turns random bits into a number in (0, 1].
double Uniform(uint64_t bits) { return (static_cast<double>(bits >> 11) + 1.0) * 0x1p-53; }

// Fills `values` with normal values of standard deviation `deviation` (Box and Muller). Elements 2i and 2i + 1 share a
// pair.
void FillNormal(uint64_t key, int64_t begin, double deviation, absl::Span<float> values) {
  constexpr int64_t kPairs = 256;
  double u[kPairs], v[kPairs];
  float cosines[kPairs], sines[kPairs];
  const int64_t end = begin + static_cast<int64_t>(values.size());
  for (int64_t first = begin / 2; 2 * first < end; first += kPairs) {
    const int64_t count = std::min(kPairs, (end + 1) / 2 - first);
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t pair = static_cast<uint64_t>(first + i);
      u[i] = Uniform(Mix(key + 2 * pair));
      v[i] = Uniform(Mix(key + 2 * pair + 1));
    }
    NormalPairs(deviation, u, v, count, cosines, sines);
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
    values[i] = static_cast<float>(bound * (2 * Uniform(Mix(key + static_cast<uint64_t>(begin) + i)) - 1));
  }
}

}  // namespace

void FillInitialValues(const Parameter& parameter, uint64_t seed, int64_t begin, absl::Span<float> values,
                       int threads) {
  const Initializer::Kind kind = parameter.initializer.kind;
  if (kind == Initializer::Kind::kOnes || kind == Initializer::Kind::kZeros) {
    std::fill(values.begin(), values.end(), kind == Initializer::Kind::kOnes ? 1.0f : 0.0f);
    return;
  }
  const uint64_t key = Mix(seed ^ Hash(parameter.name));
  constexpr size_t kLeast = 1 << 14;  // The fewest elements per thread, about 0.2 ms of work.
  const size_t parts = std::clamp<size_t>(values.size() / kLeast, 1, static_cast<size_t>(std::max(threads, 1)));
  const auto fill = [&](size_t part) {
    const size_t first = values.size() * part / parts, end = values.size() * (part + 1) / parts;
    const auto fill_part = kind == Initializer::Kind::kNormal ? FillNormal : FillUniform;
    fill_part(key, begin + static_cast<int64_t>(first), parameter.initializer.standard_deviation,
              values.subspan(first, end - first));
  };
  std::vector<std::thread> others;
  size_t part = 1;
  try {
    for (; part < parts; ++part) others.emplace_back(fill, part);
  } catch (const std::system_error&) {
    // No further thread can be started: this thread fills the parts that are left.
  }
  for (; part < parts; ++part) fill(part);
  fill(0);
  for (std::thread& other : others) other.join();
}

}  // namespace shale
