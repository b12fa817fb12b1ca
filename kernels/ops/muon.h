// The ops of Muon (Jordan et al., 2024) that are no matmuls. kernels/ops.h says what holds for all ops.
//
// P elements of a rank's shard of a flat group, N elements of a matrix, M rows and columns of a square matrix.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shale {

// The first stage of Muon, on a rank's shard of a flat group. With g the clipped gradient, in fp32:
//   m = m + (1 - beta) (g - m);  direction = nesterov ? m + (1 - beta) (g - m) : m
// rounded to the dtype of direction. Also writes `step`, with which an SGD subtracts what becomes of the direction: the
// learning rate of `update`, a gradient factor of 1, and whether the update is skipped. If it is, m keeps its bits and
// the direction is 0.
//
// A momentum in bf16 is rounded stochastically, by the bits of a RoundingStream (kernels/counter_random.h) of `seed`,
// `number`, `group` and StateStream(0). The direction is computed from the momentum before it is rounded. `number` is
// given if and only if the momentum is bf16, and shard_begin is then a multiple of kRandomBlock.
struct MuonDirection {
  static constexpr absl::string_view kName = "MuonDirection";
  Tensor update_5;     // f32, from PrepareUpdate
  Tensor gradient_P;   // f32
  Tensor momentum_P;   // f32 or bf16
  Tensor direction_P;  // f32 or bf16
  Tensor step_5;       // f32
  Tensor number_1;     // i64, optional: the update's number
  float beta = 0.95f;  // The decay rate of the momentum.
  bool nesterov = true;
  int64_t shard_begin = 0;
  int64_t shard_stride = 0;  // As in Update.
  uint64_t seed = 0;
  int32_t group = 0;
  bool rounds() const { return momentum_P.dtype == DType::kBFloat16; }
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("update", op.update_5, Access::kRead);
    v("number", op.number_1, Access::kRead);
    v("gradient", op.gradient_P, Access::kRead);
    v("momentum", op.momentum_P, Access::kReadWrite);
    v("direction", op.direction_P, Access::kWrite);
    v("step", op.step_5, Access::kWrite);
  }
};

// out = x / max(sqrt(squares), epsilon) in fp32, rounded to out's dtype: a matrix divided by its Frobenius norm, where
// SumSquares has summed the squares. The divisor's reciprocal is computed in fp64 and rounded to fp32. out may be x.
struct DivideByNorm {
  static constexpr absl::string_view kName = "DivideByNorm";
  Tensor x_N;        // f32 or bf16
  Tensor squares_1;  // f64
  Tensor out_N;      // x's dtype
  float epsilon = 1e-7f;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_N, Access::kRead);
    v("squares", op.squares_1, Access::kRead);
    v("out", op.out_N, Access::kWrite);
  }
};

// out = a I + b x + c y in fp32, rounded to out's dtype, where I is the identity matrix. With x = X X^T and y = x x, an
// iteration of Newton and Schulz is one matmul more: out X = a X + b (X X^T) X + c (X X^T)^2 X. out may be x or y.
struct MatrixPolynomial {
  static constexpr absl::string_view kName = "MatrixPolynomial";
  Tensor x_MM, y_MM, out_MM;  // one dtype, f32 or bf16
  float a = 0, b = 0, c = 0;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("x", op.x_MM, Access::kRead);
    v("y", op.y_MM, Access::kRead);
    v("out", op.out_MM, Access::kWrite);
  }
};

}  // namespace shale
