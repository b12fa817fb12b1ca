// The logistic function, and GELU by the tanh formula and by erf, for activations.
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

// x sigmoid(2 z), z = sqrt(2 / pi) (x + 0.044715 x^3), which is x (1 + tanh z) / 2. Beyond |x| = 50 the sigmoid is 0 or
// 1 to the last bit. There z is computed for |x| = 50, so that no overflow is multiplied by zero.
struct TanhGelu {
  static constexpr float kTwiceSqrt2OverPi = 1.5957691216057308f;
  static constexpr float kCubic = 0.044715f;

  SHALE_DEVICE static float Frozen(float x) { return fabsf(x) > 50.0f ? copysignf(50.0f, x) : x; }
  SHALE_DEVICE static Sigmoid SigmoidOfTwiceZ(float x, float x2) {
    return SigmoidOf(kTwiceSqrt2OverPi * x * fmaf(kCubic, x2, 1.0f));
  }

  SHALE_DEVICE static float Value(float x) {
    const float frozen = Frozen(x);
    return x * SigmoidOfTwiceZ(frozen, frozen * frozen).value;
  }
  SHALE_DEVICE static float Derivative(float x) {
    const float frozen = Frozen(x), x2 = frozen * frozen;
    const Sigmoid sigmoid = SigmoidOfTwiceZ(frozen, x2);
    return fmaf(frozen * SlopeOfTwiceZ(x2) * sigmoid.value, sigmoid.complement, sigmoid.value);
  }
  SHALE_DEVICE static float SlopeOfTwiceZ(float x2) { return kTwiceSqrt2OverPi * fmaf(3 * kCubic, x2, 1.0f); }
};

// x Phi(x), where Phi(x) = (1 + erf(x / sqrt 2)) / 2.
struct ErfGelu {
  static constexpr float kSqrtHalf = 0.70710678118654752f;
  static constexpr float kInverseSqrt2Pi = 0.3989422804014327f;

  SHALE_DEVICE static float Phi(float x) { return fmaf(0.5f, erff(x * kSqrtHalf), 0.5f); }

  SHALE_DEVICE static float Value(float x) { return x * Phi(x); }
  SHALE_DEVICE static float Derivative(float x) {
    // At |x| = 100 the density is 0. x is frozen there, so that no overflow is multiplied by zero.
    const float frozen = fabsf(x) > 100.0f ? copysignf(100.0f, x) : x;
    return fmaf(frozen * kInverseSqrt2Pi, expf(-0.5f * frozen * frozen), Phi(x));
  }
};

}  // namespace shale::cuda
