#include <algorithm>

#include "kernels/ops/attention.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

// Returns the number of (query, key) pairs of one head of a sequence in which the query sees the key.
template <class OpType>
double PairsOf(const OpType& op) {
  const int64_t length = op.q_BSHD.dim(1);
  const double s = static_cast<double>(length);
  if (!op.causal) return s * s;
  const double w = static_cast<double>(op.window > 0 ? std::min(op.window, length) : length);
  // The first w queries see 1, 2, ... w keys, all later ones w.
  return w * (w + 1) / 2 + (s - w) * w;
}

// Returns the FLOPs of one attention matmul over these pairs of all heads: 2 D per pair.
template <class OpType>
double AttentionMatMul(const OpType& op) {
  const Tensor& q_BSHD = op.q_BSHD;
  return 2.0 * static_cast<double>(q_BSHD.dim(3)) * PairsOf(op) * static_cast<double>(q_BSHD.dim(0)) *
         static_cast<double>(q_BSHD.dim(2));
}

double Flops(const MatMul& op) {
  return 2.0 * static_cast<double>(op.m()) * static_cast<double>(op.n()) * static_cast<double>(op.k());
}
// Two matmuls: q k^T and p v.
double Flops(const AttentionForward& op) { return 2 * AttentionMatMul(op); }
// Two matmuls too. How many keys the cache holds is not known, so this counts all that a query may see.
double Flops(const CachedAttention& op) {
  const int64_t rows = op.keys_CGPD.dim(2), keys = op.window > 0 ? std::min(op.window, rows) : rows;
  return 4.0 * static_cast<double>(op.q_BSHD.elements()) * static_cast<double>(keys);
}
// Five matmuls: q k^T again, d_out v^T, and one each for d_q, d_k and d_v.
double Flops(const AttentionBackward& op) { return 5 * AttentionMatMul(op); }

}  // namespace

double FlopsOf(const Op& op) {
  if (const auto* matmul = op.As<MatMul>()) return Flops(*matmul);
  if (const auto* forward = op.As<AttentionForward>()) return Flops(*forward);
  if (const auto* cached = op.As<CachedAttention>()) return Flops(*cached);
  if (const auto* backward = op.As<AttentionBackward>()) return Flops(*backward);
  return 0;
}

}  // namespace shale
