// Embeddings of tokens and positions. kernels/ops.h says what holds for all ops.
//
// T tokens (B sequences of S), C model width, V vocabulary, P rows of the position table.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shale {

// Returns the elements of `count` different rows of a table, or of all if it has fewer.
inline int64_t ElementsOfRows(int64_t count, const Tensor& table) {
  return std::min(count, table.dim(0)) * table.dim(1);
}

// out[t] = scale * weight[tokens[t]] + positions[t mod S]. Tokens lie in [0, V). With `position_ids` ([Note: position
// ids] in kernels/ops/attention.h), they take the place of t mod S. Their gradient is an EmbeddingBackward with
// position_ids as tokens. With `begins` ([Note: begins] there), sequence b begins at row begins[b] of `positions`; no
// row may lie past its end. REQUIRES: at most one of position_ids and begins is given.
struct EmbeddingForward {
  static constexpr absl::string_view kName = "EmbeddingForward";
  Tensor tokens_BS;        // i32
  Tensor weight_VC;        // act
  Tensor positions_PC;     // act, optional, P >= S
  Tensor out_TC;           // act
  Tensor position_ids_BS;  // i32, optional
  Tensor begins_B;         // i32, optional
  float scale = 1;
  int64_t ElementsMoved(const Tensor& operand, Access) const {
    if (&operand == &weight_VC) return ElementsOfRows(tokens_BS.elements(), operand);
    if (&operand != &positions_PC) return operand.elements();
    // With begins, sequences have positions of their own.
    return ElementsOfRows(begins_B.present() ? tokens_BS.elements() : tokens_BS.dim(1), operand);
  }
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("tokens", op.tokens_BS, Access::kRead);
    v("weight", op.weight_VC, Access::kRead);
    v("positions", op.positions_PC, Access::kRead);
    v("position_ids", op.position_ids_BS, Access::kRead);
    v("begins", op.begins_B, Access::kRead);
    v("out", op.out_TC, Access::kWrite);
  }
};

// d_weight[v] (+)= scale * sum of d_out[t] over all t with tokens[t] = v, in the order of t, which CUDA cuts into
// segments of a fixed length ([Note: frequent tokens] in kernels/cuda/embedding.cu); d_positions[s] (+)= the
// sum over all t with t mod S = s. Rows that receive no gradient become zero, or stay as they are if `accumulate` is
// set.
struct EmbeddingBackward {
  static constexpr absl::string_view kName = "EmbeddingBackward";
  Tensor tokens_BS;       // i32
  Tensor d_out_TC;        // act
  Tensor d_weight_VC;     // f32
  Tensor d_positions_PC;  // f32, optional
  bool accumulate = false;
  float scale = 1;
  int64_t ElementsMoved(const Tensor& operand, Access) const {
    // Rows without a gradient become zero, unless the op accumulates.
    if (accumulate && &operand == &d_weight_VC) return ElementsOfRows(tokens_BS.elements(), operand);
    if (accumulate && &operand == &d_positions_PC) return ElementsOfRows(tokens_BS.dim(1), operand);
    return operand.elements();
  }
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    const Access grad = op.accumulate ? Access::kReadWrite : Access::kWrite;
    v("tokens", op.tokens_BS, Access::kRead);
    v("d_out", op.d_out_TC, Access::kRead);
    v("d_weight", op.d_weight_VC, grad);
    v("d_positions", op.d_positions_PC, grad);
  }
};

}  // namespace shale
