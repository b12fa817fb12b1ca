// Rotary position embedding. kernels/ops.h says what holds for all ops.
//
// B sequences of S tokens, H heads, D head width.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shale {

// Scales the rotary frequencies for contexts longer than those trained on (Llama 3.1). factor 1 leaves them unchanged.
// For f = theta^(-2i/D) with wavelength L = 2 pi / f: f stays if L < original_context / high_freq_factor, is divided by
// `factor` if L > original_context / low_freq_factor, and is interpolated in between.
struct RopeScaling {
  double factor = 1;
  double low_freq_factor = 1;
  double high_freq_factor = 4;
  int64_t original_context = 8192;
};

// Rotary position embedding in place (Su et al., 2021), halves convention: at position s of its document, rotates the
// pair (x[i], x[i + D/2]) by the angle s * f(i), or by its negative if `inverse` is set (which computes the gradient).
// A sequence is one document unless there are position_ids ([Note: position ids] in kernels/ops/attention.h), and
// begins at position 0 unless there are begins ([Note: begins] there). Angles are computed in fp64. REQUIRES: at most
// one of position_ids and begins is given.
struct Rope {
  static constexpr absl::string_view kName = "Rope";
  Tensor x_BSHD;           // act, outer dimensions may be strided
  Tensor position_ids_BS;  // i32, optional
  Tensor begins_B;         // i32, optional
  double theta = 10000;
  RopeScaling scaling;
  bool inverse = false;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("position_ids", op.position_ids_BS, Access::kRead);
    v("begins", op.begins_B, Access::kRead);
    v("x", op.x_BSHD, Access::kReadWrite);
  }
};

}  // namespace shale
