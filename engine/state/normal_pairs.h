// Computes pairs of independent normal values from pairs of uniform ones (Box and Muller, A note on the generation of
// random normal deviates, 1958).
#pragma once

#include <cstdint>

namespace shale {

// For i in [0, count), sets cosines[i] and sines[i] to deviation * sqrt(-2 log(u[i])) times the cosine and the sine of
// 2 pi v[i]. The bits are those that double arithmetic with the functions of the C library gives, rounded to float. u
// and v are in (0, 1]. Uses vectors of up to `most_lanes` doubles (4 or 8) if the processor has them; the bits are the
// same with every instruction set.
void NormalPairs(double deviation, const double* u, const double* v, int64_t count, float* cosines, float* sines,
                 int most_lanes = 8);

}  // namespace shale
