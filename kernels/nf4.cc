#include "kernels/nf4.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>

#include "kernels/check.h"
#include "kernels/dynamic_map.h"
#include "kernels/integers.h"

namespace shale {
namespace {

// Boundary c lies in the middle between the values of codes c and c + 1, and belongs to code c.
constexpr auto kBoundaries = [] {
  std::array<float, kNf4Codes - 1> boundaries = {};
  for (int c = 0; c + 1 < kNf4Codes; ++c) {
    boundaries[c] = static_cast<float>((static_cast<double>(Nf4Value(c)) + Nf4Value(c + 1)) / 2);
  }
  return boundaries;
}();

// The same for the codes of SignedMap.
constexpr int kMapCodes = 256;
constexpr auto kMapValues = [] {
  std::array<float, kMapCodes> values = {};
  for (int q = 0; q < kMapCodes; ++q) values[q] = SignedMap::ValueOf(q);
  return values;
}();
constexpr auto kMapBoundaries = [] {
  std::array<float, kMapCodes - 1> boundaries = {};
  for (int q = 0; q + 1 < kMapCodes; ++q) {
    boundaries[q] = static_cast<float>((static_cast<double>(kMapValues[q]) + kMapValues[q + 1]) / 2);
  }
  return boundaries;
}();

// Always inlined, so that the compiler generates code for each instruction set.
[[gnu::always_inline]] inline void CodesOfAny(const float* ratios, uint8_t* codes) {
  int32_t code[kNf4BlockWeights] = {};  // Of each weight: the number of boundaries below its ratio.
  for (const float boundary : kBoundaries) {
    for (int64_t i = 0; i < kNf4BlockWeights; ++i) code[i] += ratios[i] > boundary ? 1 : 0;
  }
  for (int64_t i = 0; i < kNf4BlockWeights / 2; ++i) {
    codes[i] = static_cast<uint8_t>(code[2 * i] << 4 | code[2 * i + 1]);
  }
}

#ifdef __x86_64__
[[gnu::target("avx512f,prefer-vector-width=512")]] void CodesOf16(const float* ratios, uint8_t* codes) {
  CodesOfAny(ratios, codes);
}
[[gnu::target("avx2")]] void CodesOf8(const float* ratios, uint8_t* codes) { CodesOfAny(ratios, codes); }
#endif

// Stores the codes of a full block of weights, given the ratios of the weights to their absmax.
void CodesOf(const float* ratios, uint8_t* codes) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx512f")) return CodesOf16(ratios, codes);
  if (__builtin_cpu_supports("avx2")) return CodesOf8(ratios, codes);
#endif
  CodesOfAny(ratios, codes);
}

}  // namespace

float AbsmaxOfNf4Block(absl::Span<const float> weights) {
  SHALE_CHECK(!weights.empty() && weights.size() <= kNf4BlockWeights);
  // The bits of floats without their signs have the order of the absolute values, and those of a NaN are the largest.
  int32_t most = 0;
  for (const float w : weights) most = std::max(most, std::bit_cast<int32_t>(w) & 0x7fffffff);
  return std::bit_cast<float>(most);
}

float QuantizeNf4Block(absl::Span<const float> weights, uint8_t* codes) {
  const float absmax = AbsmaxOfNf4Block(weights);
  if (std::isnan(absmax)) return absmax;
  float ratios[kNf4BlockWeights] = {};  // A weight that is missing, and one of a block of zeros, has the code of 0.
  if (absmax > 0) {
    const float inverse = 1 / absmax;
    for (size_t i = 0; i < weights.size(); ++i) ratios[i] = weights[i] * inverse;
  }
  if (weights.size() == kNf4BlockWeights) {
    CodesOf(ratios, codes);
  } else {
    uint8_t all[kNf4BlockWeights / 2];
    CodesOf(ratios, all);
    std::copy_n(all, CeilDivide(std::ssize(weights), 2), codes);
  }
  return absmax;
}

float MeanOfAbsmax(absl::Span<const float> absmax) {
  double sum = 0;
  for (const float a : absmax) sum += a;
  return static_cast<float>(sum / static_cast<double>(absmax.size()));
}

float QuantizeAbsmax(absl::Span<const float> absmax, float mean, uint8_t* codes) {
  SHALE_CHECK(!absmax.empty() && absmax.size() <= kNf4GroupBlocks);
  float scale = 0;
  for (const float a : absmax) scale = std::max(scale, std::fabs(a - mean));
  const float inverse = scale > 0 ? 1 / scale : 0;
  for (size_t i = 0; i < absmax.size(); ++i) {
    const float ratio = (absmax[i] - mean) * inverse;
    codes[i] = static_cast<uint8_t>(std::lower_bound(kMapBoundaries.begin(), kMapBoundaries.end(), ratio) -
                                    kMapBoundaries.begin());
  }
  return scale;
}

void DequantizeAbsmax(const uint8_t* codes, float scale, float mean, absl::Span<float> absmax) {
  for (size_t i = 0; i < absmax.size(); ++i) absmax[i] = kMapValues[codes[i]] * scale + mean;
}

void DequantizeNf4(const uint8_t* codes, const uint8_t* absmax, float scale, float mean, absl::Span<float> weights) {
  SHALE_CHECK(weights.size() <= kNf4GroupWeights);
  float of_block[kNf4GroupBlocks];
  DequantizeAbsmax(absmax, scale, mean, absl::MakeSpan(of_block, CeilDivide(std::ssize(weights), kNf4BlockWeights)));
  for (size_t i = 0; i < weights.size(); ++i) {
    const int code = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
    weights[i] = Nf4Value(code) * of_block[i / kNf4BlockWeights];
  }
}

}  // namespace shale
