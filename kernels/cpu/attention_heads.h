// The rows of the heads that attention's kernels read and write.
#pragma once

#include <cstdint>

#include "kernels/ops/attention.h"
#include "kernels/tensor.h"

namespace shale::cpu {

// The rows of one head: row i is query or key i of its sequence.
template <class T>
struct HeadRows {
  HeadRows(const Tensor& t_BSHD, int64_t b, int64_t h)
      : data(t_BSHD.as<T>() + b * t_BSHD.stride(0) + h * t_BSHD.stride(2)), stride(t_BSHD.stride(1)) {}
  T* operator[](int64_t i) const { return data + i * stride; }

  T* data;
  int64_t stride;
};

// The operands of one query head. `item` numbers the query heads of all sequences.
template <class T>
struct ForwardHead {
  ForwardHead(const AttentionForward& op, int64_t item)
      : ForwardHead(op, item / op.q_BSHD.dim(2), item % op.q_BSHD.dim(2), op.q_BSHD.dim(2) / op.k_BSGD.dim(2)) {}
  ForwardHead(const AttentionForward& op, int64_t b, int64_t h, int64_t heads_per_group)
      : first_of_group(h % heads_per_group == 0),
        q(op.q_BSHD, b, h),
        k(op.k_BSGD, b, h / heads_per_group),
        v(op.v_BSGD, b, h / heads_per_group),
        out(op.out_BSHD, b, h),
        lse(op.lse_BHS.as<float>() + (b * op.q_BSHD.dim(2) + h) * op.q_BSHD.dim(1)) {}

  bool first_of_group;
  HeadRows<T> q, k, v, out;
  float* lse;
};

// The operands of one query head and of the key/value head that it reads. `item` numbers the query heads of all
// sequences.
template <class T>
struct BackwardHead {
  BackwardHead(const AttentionBackward& op, int64_t item)
      : BackwardHead(op, item / op.q_BSHD.dim(2), item % op.q_BSHD.dim(2), op.q_BSHD.dim(2) / op.k_BSGD.dim(2)) {}
  BackwardHead(const AttentionBackward& op, int64_t b, int64_t h, int64_t heads_per_group)
      : first_of_group(h % heads_per_group == 0),
        last_of_group((h + 1) % heads_per_group == 0),
        q(op.q_BSHD, b, h),
        k(op.k_BSGD, b, h / heads_per_group),
        v(op.v_BSGD, b, h / heads_per_group),
        out(op.out_BSHD, b, h),
        d_out(op.d_out_BSHD, b, h),
        d_q(op.d_q_BSHD, b, h),
        d_k(op.d_k_BSGD, b, h / heads_per_group),
        d_v(op.d_v_BSGD, b, h / heads_per_group),
        lse(op.lse_BHS.as<const float>() + (b * op.q_BSHD.dim(2) + h) * op.q_BSHD.dim(1)) {}

  bool first_of_group, last_of_group;
  HeadRows<T> q, k, v, out, d_out, d_q, d_k, d_v;
  const float* lse;
};

}  // namespace shale::cpu
