// Polynomials compute all values to well within a relative error of 2^-44 from the C library's. That determines the
// rounded float, except for about one value in a million; a block with such a value is computed again with the C
// library. The loops below have no calls and no branches, so that the compiler vectorizes them.
#include "engine/run/state/fill_loops.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <numbers>

namespace shale {
namespace {

constexpr double kTwoPi = 2.0 * std::numbers::pi;

void PairsByLibrary(double deviation, const double* u, const double* v, int64_t count, float* cosines, float* sines) {
  for (int64_t i = 0; i < count; ++i) {
    const double scale = deviation * std::sqrt(-2.0 * std::log(u[i]));
    double sine, cosine;
    ::sincos(kTwoPi * v[i], &sine, &cosine);
    cosines[i] = static_cast<float>(scale * cosine);
    sines[i] = static_cast<float>(scale * sine);
  }
}

// Always inlined, so that the compiler generates code for each instruction set.
#define SHALE_INLINE [[gnu::always_inline]] inline

SHALE_INLINE void Uniforms(uint64_t key, int64_t first, int64_t count, double* u, double* v) {
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t counter = key + 2 * static_cast<uint64_t>(first + i);
    u[i] = UniformOf(MixCounter(counter));
    v[i] = UniformOf(MixCounter(counter + 1));
  }
}

#ifdef __x86_64__

// Returns 1 + x (c[0] + x (c[1] + ...)).
template <size_t kTerms>
SHALE_INLINE double OnePlus(double x, const double (&c)[kTerms]) {
  double sum = c[kTerms - 1];
  for (size_t i = kTerms - 1; i-- > 0;) sum = sum * x + c[i];
  return sum * x + 1;
}

// log(u) = e log(2) + log(m) with u = m 2^e and m from sqrt(1/2) to sqrt(2). With s = (m - 1) / (m + 1),
// log(m) = 2 atanh(s) = 2 (s + s^3 / 3 + ...).
SHALE_INLINE double Log(double u) {
  constexpr double kAtanh[] = {1.0 / 3,  1.0 / 5,  1.0 / 7,  1.0 / 9,  1.0 / 11,
                               1.0 / 13, 1.0 / 15, 1.0 / 17, 1.0 / 19, 1.0 / 21};
  constexpr uint64_t kRootOfHalf = 0x3fe6a09e667f3bcd, kOne = 0x3ff0000000000000;
  const uint64_t biased = (std::bit_cast<uint64_t>(u) - kRootOfHalf + kOne) >> 52;  // e + 1023.
  const double m = std::bit_cast<double>(std::bit_cast<uint64_t>(u) - (biased << 52) + kOne);
  // Converts `biased` to double: the last bits of the double 2^52 + biased are `biased`.
  const double e = std::bit_cast<double>(biased | 0x4330000000000000) - (0x1p52 + 1023);
  const double s = (m - 1) / (m + 1);
  return e * std::numbers::ln2 + 2 * s * OnePlus(s * s, kAtanh);
}

// Return the sine and the cosine of r in [-pi/4, pi/4] by their Taylor series.
SHALE_INLINE double SmallSine(double r) {
  constexpr double kSine[] = {-1.0 / 6,          1.0 / 120,          -1.0 / 5040,           1.0 / 362880,
                              -1.0 / 39916800.0, 1.0 / 6227020800.0, -1.0 / 1307674368000.0};
  return r * OnePlus(r * r, kSine);
}
SHALE_INLINE double SmallCosine(double r) {
  constexpr double kCosine[] = {-1.0 / 2,         1.0 / 24,          -1.0 / 720,           1.0 / 40320,
                                -1.0 / 3628800.0, 1.0 / 479001600.0, -1.0 / 87178291200.0, 1.0 / 20922789888000.0};
  return OnePlus(r * r, kCosine);
}

// Returns whether a relative error of 2^-44 could change the float that `value` is rounded to.
SHALE_INLINE bool InDoubt(double value) {
  return static_cast<float>(value * (1 - 0x1p-44)) != static_cast<float>(value * (1 + 0x1p-44));
}

// Computes kBlock pairs. Returns false if at least one value may be rounded to the wrong float.
constexpr int64_t kBlock = 64;
SHALE_INLINE bool BlockOfPairs(double deviation, const double* u, const double* v, float* cosines, float* sines) {
  int doubts = 0;
  for (int64_t i = 0; i < kBlock; ++i) {
    const double scale = deviation * std::sqrt(-2.0 * Log(u[i]));
    const double angle = kTwoPi * v[i];
    // angle = r + quarter * pi / 2. pi / 2 is split into two parts; the first has so few bits that its product with
    // `quarter` is exact. Adding 1.5 x 2^52 rounds to an integer, which is then in the last bits.
    const double shifted = angle * (2 / std::numbers::pi) + 0x1.8p52;
    const double quarter = shifted - 0x1.8p52;
    const uint64_t q = std::bit_cast<uint64_t>(shifted);
    const double r = (angle - quarter * 0x1.921fb544p0) - quarter * 0x1.0b4611a626331p-34;
    const double sine = SmallSine(r), cosine = SmallCosine(r);
    // In quarters 0 to 3 of the circle, the cosine of the angle is cos r, -sin r, -cos r and sin r, and its sine is
    // sin r, cos r, -sin r and -cos r.
    const double c = (q & 1) != 0 ? sine : cosine, s = (q & 1) != 0 ? cosine : sine;
    const auto negated = [](double x, uint64_t if_two) {
      return std::bit_cast<double>(std::bit_cast<uint64_t>(x) ^ (if_two & 2) << 62);
    };
    const double x = scale * negated(c, q + 1), y = scale * negated(s, q);
    cosines[i] = static_cast<float>(x);
    sines[i] = static_cast<float>(y);
    // Next to a multiple of pi / 2, r is so small that the two parts of pi / 2 are not exact enough.
    doubts |= static_cast<int>(InDoubt(x)) | static_cast<int>(InDoubt(y)) | static_cast<int>(std::abs(r) < 0x1p-30);
  }
  return doubts == 0;
}

[[gnu::target("avx512f,avx512dq,avx512vl,prefer-vector-width=512")]] bool BlockOf8(double deviation, const double* u,
                                                                                   const double* v, float* cosines,
                                                                                   float* sines) {
  return BlockOfPairs(deviation, u, v, cosines, sines);
}
[[gnu::target("avx2")]] bool BlockOf4(double deviation, const double* u, const double* v, float* cosines,
                                      float* sines) {
  return BlockOfPairs(deviation, u, v, cosines, sines);
}

[[gnu::target("avx512f,avx512dq,avx512vl,prefer-vector-width=512")]] void UniformsOf8(uint64_t key, int64_t first,
                                                                                      int64_t count, double* u,
                                                                                      double* v) {
  Uniforms(key, first, count, u, v);
}

bool Has8Lanes() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

using Block = bool (*)(double, const double*, const double*, float*, float*);
// Returns the function for this processor, or null if there is none. Then only the C library is used.
Block BlockWith(int most_lanes) {
  if (most_lanes >= 8 && Has8Lanes()) return BlockOf8;
  return most_lanes >= 4 && __builtin_cpu_supports("avx2") ? BlockOf4 : nullptr;
}

#endif

}  // namespace

void UniformPairs(uint64_t key, int64_t first, int64_t count, double* u, double* v, int most_lanes) {
#ifdef __x86_64__
  // Below AVX-512 there is no multiplication of 64-bit integers in vectors.
  if (most_lanes >= 8 && Has8Lanes()) return UniformsOf8(key, first, count, u, v);
#endif
  Uniforms(key, first, count, u, v);
}

void NormalPairs(double deviation, const double* u, const double* v, int64_t count, float* cosines, float* sines,
                 int most_lanes) {
  int64_t i = 0;
#ifdef __x86_64__
  if (const Block block = BlockWith(most_lanes); block != nullptr) {
    for (; i + kBlock <= count; i += kBlock) {
      if (!block(deviation, u + i, v + i, cosines + i, sines + i)) {
        PairsByLibrary(deviation, u + i, v + i, kBlock, cosines + i, sines + i);
      }
    }
  }
#endif
  PairsByLibrary(deviation, u + i, v + i, count - i, cosines + i, sines + i);
}

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
