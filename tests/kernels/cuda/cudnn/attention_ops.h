// Makes attention ops of any shape, laid out as the engine does.
#pragma once

#include <cstdint>

#include "kernels/ops/attention.h"

namespace shale::testing {

struct AttentionShape {
  int64_t batch = 1, length = 4, heads = 1, groups = 1, width = 64;
  int64_t window = 0;
  int64_t gap = 0;  // Unused columns of the packed matrix behind those of v.
  bool causal = true;

  bool operator==(const AttentionShape&) const = default;
};

// Returns an attention op. Calls make(rows, columns) for each bf16 matrix: q, k and v are columns of one matrix, and
// their gradients are columns of another. make_lse(B, H, S) makes lse in f32.
template <class Make, class MakeLse>
AttentionBackward PackedAttention(const AttentionShape& s, const Make& make, const MakeLse& make_lse) {
  AttentionBackward op;
  const auto columns = [&](const Tensor& packed, int64_t first_head, int64_t heads) {
    return packed.Slice(1, first_head * s.width, heads * s.width).SplitLast(heads, s.width).SplitFirst(s.batch);
  };
  const auto split = [&](Tensor& q, Tensor& k, Tensor& v) {
    const Tensor packed = make(s.batch * s.length, (s.heads + 2 * s.groups) * s.width + s.gap);
    q = columns(packed, 0, s.heads);
    k = columns(packed, s.heads, s.groups);
    v = columns(packed, s.heads + s.groups, s.groups);
  };
  split(op.q_BSHD, op.k_BSGD, op.v_BSGD);
  split(op.d_q_BSHD, op.d_k_BSGD, op.d_v_BSGD);
  op.out_BSHD = columns(make(s.batch * s.length, s.heads * s.width), 0, s.heads);
  op.d_out_BSHD = columns(make(s.batch * s.length, s.heads * s.width), 0, s.heads);
  op.lse_BHS = make_lse(s.batch, s.heads, s.length);
  op.scale = 0.125f;
  op.window = s.window;
  op.causal = s.causal;
  return op;
}

// Returns an attention op whose tensors have symbols instead of memory.
inline AttentionBackward SymbolicAttention(const AttentionShape& shape, DType dtype = DType::kBFloat16) {
  int32_t symbol = 0;
  const auto placed = [&](Tensor t) {
    t.where.symbol = symbol++;
    return t;
  };
  return PackedAttention(
      shape,
      [&](int64_t rows, int64_t columns) {
        return placed(Tensor::Contiguous(dtype, {rows, columns}));
      },
      [&](int64_t b, int64_t h, int64_t s) {
        return placed(Tensor::Contiguous(DType::kFloat32, {b, h, s}));
      });
}

inline AttentionForward ForwardOf(const AttentionBackward& op) {
  return {.q_BSHD = op.q_BSHD,
          .k_BSGD = op.k_BSGD,
          .v_BSGD = op.v_BSGD,
          .out_BSHD = op.out_BSHD,
          .lse_BHS = op.lse_BHS,
          .scale = op.scale,
          .window = op.window,
          .causal = op.causal,
          .cap = op.cap};
}

}  // namespace shale::testing
