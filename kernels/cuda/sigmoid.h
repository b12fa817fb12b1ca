// The logistic function, for activations.
#pragma once

#include "kernels/cuda/portable.h"

namespace shale::cuda {

// sigmoid(x) and 1 - sigmoid(x) = sigmoid(-x), both without cancellation: with e = exp(-|x|) they are 1 / (1 + e) and e
// / (1 + e), in this order if x >= 0. Nothing overflows. A NaN gives NaNs.
struct Sigmoid {
  float value, complement;
};
SHALE_DEVICE Sigmoid SigmoidOf(float x) {
  const float e = expf(-fabsf(x));
  const float larger = __fdividef(1.0f, 1.0f + e), smaller = e * larger;
  return x < 0 ? Sigmoid{smaller, larger} : Sigmoid{larger, smaller};
}

}  // namespace shale::cuda
