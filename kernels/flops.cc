#include <algorithm>

#include "kernels/ops/attention.h"
#include "kernels/ops/matmul.h"

namespace shale {
namespace {

// Returns the number of (query, key) pairs that causal attention over S positions visits.
double CausalPairs(int64_t s, int64_t window) {
  const double w = static_cast<double>(window > 0 ? std::min(window, s) : s);
  // The first w queries see 1, 2, ... w keys, all later ones w.
  return w * (w + 1) / 2 + (static_cast<double>(s) - w) * w;
}

// Returns the FLOPs of one attention matmul over the visited pairs of all heads: 2 D per pair.
double AttentionMatMul(const Tensor& q_BSHD, int64_t window) {
  return 2.0 * static_cast<double>(q_BSHD.dim(3)) * CausalPairs(q_BSHD.dim(1), window) *
         static_cast<double>(q_BSHD.dim(0)) * static_cast<double>(q_BSHD.dim(2));
}

double Flops(const MatMul& op) {
  return 2.0 * static_cast<double>(op.m()) * static_cast<double>(op.n()) * static_cast<double>(op.k());
}
// Two matmuls: q k^T and p v.
double Flops(const AttentionForward& op) { return 2 * AttentionMatMul(op.q_BSHD, op.window); }
// Five matmuls: q k^T again, d_out v^T, and one each for d_q, d_k and d_v.
double Flops(const AttentionBackward& op) { return 5 * AttentionMatMul(op.q_BSHD, op.window); }

}  // namespace

double FlopsOf(const Op& op) {
  if (const auto* matmul = op.As<MatMul>()) return Flops(*matmul);
  if (const auto* forward = op.As<AttentionForward>()) return Flops(*forward);
  if (const auto* backward = op.As<AttentionBackward>()) return Flops(*backward);
  return 0;
}

}  // namespace shale
