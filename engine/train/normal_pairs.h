// Pairs of independent standard normal values from pairs of uniform ones (Box and Muller, A note on the generation of
// random normal deviates, 1958).
#pragma once

#include <cstdint>

namespace shale {

// For i in [0, count): cosines[i] and sines[i] are deviation * sqrt(-2 log(u[i])) times the cosine and the sine of
// 2 pi v[i], as double arithmetic and the C library give them, rounded to float. u and v are in (0, 1]. The same bits
// with every instruction set: vectors of up to `most_lanes` doubles (4 or 8) are used where the processor has them.
void NormalPairs(double deviation, const double* u, const double* v, int64_t count, float* cosines, float* sines,
                 int most_lanes = 8);

}  // namespace shale
