// The frequencies of rotary embeddings, which the reference and the fast CPU backend share.
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace shale {

// f(i) of pair i of a head of `width`, stretched by `scaling`: radians per position.
double RopeFrequency(double theta, const RopeScaling& scaling, int64_t i, int64_t width);

}  // namespace shale
