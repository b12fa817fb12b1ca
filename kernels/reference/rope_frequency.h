// The frequencies of rotary embeddings, shared by the reference and the fast CPU backend.
#pragma once

#include <cstdint>

namespace shale {

struct RopeScaling;  // kernels/ops/rope.h

// Returns the frequency f(i), in radians per position, of pair i of a head of `width` elements, scaled by `scaling`.
double RopeFrequency(double theta, const RopeScaling& scaling, int64_t i, int64_t width);

}  // namespace shale
