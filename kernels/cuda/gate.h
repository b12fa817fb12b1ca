// The gates of SwiGLU and GEGLU, forward and backward, of single numbers. All kernels that compute them call these
// functions, so that they get the same bits.
#pragma once

#include "kernels/cuda/activation.h"
#include "kernels/cuda/portable.h"

namespace shale::cuda {

// A gate's activation is g sigmoid(u), where u is a function of the gate g, and its derivative is s (1 + g u' (1 - s))
// with s = sigmoid(u). `slope` is g u'.
struct GateParts {
  Sigmoid sigmoid;
  float slope;
};
struct SiluGate {
  SHALE_DEVICE static GateParts Of(float g) { return {SigmoidOf(g), g}; }
};
struct TanhGeluGate {
  SHALE_DEVICE static GateParts Of(float g) {
    const float frozen = TanhGelu::Frozen(g), g2 = frozen * frozen;
    return {TanhGelu::SigmoidOfTwiceZ(frozen, g2), frozen * TanhGelu::SlopeOfTwiceZ(g2)};
  }
};

// Return y = act(gate) * up, and its gradients with respect to gate and up, of which d is that of y.
SHALE_DEVICE float GatedValue(const GateParts& parts, float g, float u) { return g * parts.sigmoid.value * u; }
SHALE_DEVICE float GateGradient(const GateParts& parts, float u, float d) {
  return d * u * parts.sigmoid.value * fmaf(parts.slope, parts.sigmoid.complement, 1.0f);
}
SHALE_DEVICE float UpGradient(const GateParts& parts, float g, float d) { return d * g * parts.sigmoid.value; }

}  // namespace shale::cuda
