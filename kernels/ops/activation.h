// Activation functions: SwiGLU, GEGLU and GELU. kernels/ops.h says what holds for all ops.
//
// T tokens, F inner width.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shale {

// What is done to a gate: kSilu is silu(g) = g / (1 + exp(-g)), kGeluTanh is the GELU of GeluKind::kTanh below.
enum class GateKind : uint8_t { kSilu, kGeluTanh };

// y = act(gate) * up, where gate and up are the halves of a row (Shazeer, 2020). Its name is that of the usual gate,
// kSilu.
struct SwiGluForward {
  static constexpr absl::string_view kName = "SwiGluForward";
  Tensor gate_up_T2F;  // act, [T, 2F]
  Tensor y_TF;         // act
  GateKind gate = GateKind::kSilu;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("gate_up", op.gate_up_T2F, Access::kRead);
    v("y", op.y_TF, Access::kWrite);
  }
};

// Computes d_gate_up, the gradient of SwiGluForward with respect to gate_up.
struct SwiGluBackward {
  static constexpr absl::string_view kName = "SwiGluBackward";
  Tensor gate_up_T2F;    // act
  Tensor d_y_TF;         // act
  Tensor d_gate_up_T2F;  // act; may be gate_up itself
  Tensor y_TF;           // act, optional: y of the forward op again, with the same bits; may be d_y itself
  GateKind gate = GateKind::kSilu;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("gate_up", op.gate_up_T2F, Access::kRead);
    v("d_y", op.d_y_TF, Access::kRead);
    v("d_gate_up", op.d_gate_up_T2F, Access::kWrite);
    v("y", op.y_TF, Access::kWrite);
  }
};

// GELU (Hendrycks and Gimpel, 2016). kErf is exact, x Phi(x); kTanh is 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
enum class GeluKind : uint8_t { kTanh, kErf };

struct GeluForward {
  static constexpr absl::string_view kName = "GeluForward";
  Tensor x_TF, y_TF;  // act
  GeluKind kind = GeluKind::kTanh;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_TF, Access::kRead);
    v("y", op.y_TF, Access::kWrite);
  }
};

struct GeluBackward {
  static constexpr absl::string_view kName = "GeluBackward";
  Tensor x_TF, d_y_TF, d_x_TF;  // act; d_x may be d_y itself
  GeluKind kind = GeluKind::kTanh;
  Tensor y_TF;  // act, optional: y of the forward op again, with the same bits; may be x itself
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_TF, Access::kRead);
    v("d_y", op.d_y_TF, Access::kRead);
    v("d_x", op.d_x_TF, Access::kWrite);
    v("y", op.y_TF, Access::kWrite);
  }
};

}  // namespace shale
