// The inner loops of filling in weights, which the compiler vectorizes: random values, and their rounding.
//
// Random numbers are functions of a counter: uniform ones, and pairs of independent normal ones made of these (Box and
// Muller, A note on the generation of random normal deviates, 1958).
#pragma once

#include <cstdint>

#include "kernels/dtype.h"

namespace shale {

// SplitMix64 (Steele et al., 2014): a bijective mix, used as a counter generator.
inline uint64_t MixCounter(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

// Turns random bits into a number in (0, 1].
inline double UniformOf(uint64_t bits) { return (static_cast<double>(bits >> 11) + 1.0) * 0x1p-53; }

// For i in [0, count), sets u[i] and v[i] to the uniform numbers of the counters key + 2 (first + i) and the one after
// it. The bits are the same with every instruction set; `most_lanes` is as below.
void UniformPairs(uint64_t key, int64_t first, int64_t count, double* u, double* v, int most_lanes = 8);

// For i in [0, count), sets cosines[i] and sines[i] to deviation * sqrt(-2 log(u[i])) times the cosine and the sine of
// 2 pi v[i]. The bits are those that double arithmetic with the functions of the C library gives, rounded to float. u
// and v are in (0, 1]. Uses vectors of up to `most_lanes` doubles (4 or 8) if the processor has them; the bits are the
// same with every instruction set.
void NormalPairs(double deviation, const double* u, const double* v, int64_t count, float* cosines, float* sines,
                 int most_lanes = 8);

// The weights that are computed with are fp32 values, rounded. Masters of bf16 weights may be kept as their low bits
// (JoinMaster in kernels/dtype.h).

// Stores each value at `weights` as an update does: RoundMaster of it for bf16, RoundToFloat16 for f16. REQUIRES: dtype
// is one of the two.
void RoundMasters(const float* values, int64_t count, DType dtype, void* weights);
// Stores MasterLowBits of each value and its RoundMaster.
void TakeLowBits(const float* values, int64_t count, int16_t* low);

}  // namespace shale
