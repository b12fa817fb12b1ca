// Declarations of ops that do not fit into their structs (kernels/ops.h lists what an op may declare).
#include <algorithm>
#include <bit>

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

int64_t BitsOf(float x) { return std::bit_cast<int32_t>(x); }

}  // namespace

// The bindings name all members, so that a new attribute does not compile until it is here.
std::vector<int64_t> MatMul::LibraryAttributes() const {
  const auto& [a, b, bias, c, packed_b, scale_a, scale_b, transpose_a, transpose_b, accumulate, b_is_packed,
               fast_accumulation, scales, scale] = *this;
  return {transpose_a,  transpose_b, accumulate, b_is_packed, fast_accumulation, static_cast<int64_t>(scales),
          BitsOf(scale)};
}
std::vector<int64_t> AttentionForward::LibraryAttributes() const {
  const auto& [q, k, v, out, lse, position_ids, scale, window, causal, cap] = *this;
  return {BitsOf(scale), window, causal, BitsOf(cap)};
}
std::vector<int64_t> AttentionBackward::LibraryAttributes() const {
  const auto& [q, k, v, out, lse, d_out, d_q, d_k, d_v, position_ids, scale, window, causal, cap] = *this;
  return {BitsOf(scale), window, causal, BitsOf(cap)};
}

// Two matmuls: q k^T and p v.
double AttentionForward::flops() const { return 2 * AttentionMatMul(*this); }
// Five matmuls: q k^T again, d_out v^T, and one each for d_q, d_k and d_v.
double AttentionBackward::flops() const { return 5 * AttentionMatMul(*this); }

// Two matmuls too. How many keys the cache holds is not known, so this counts all that a query may see.
double CachedAttention::flops() const {
  const int64_t rows = keys_CGPD.dim(2), keys = window > 0 ? std::min(window, rows) : rows;
  return 4.0 * static_cast<double>(q_BSHD.elements()) * static_cast<double>(keys);
}

// Counts all keys that the queries may see, as flops does. New keys go to all sequences of the cache. Keys are read
// from as many of them as the queries have.
int64_t CachedAttention::ElementsMoved(const Tensor& operand, Access access) const {
  if (&operand != &keys_CGPD && &operand != &values_CGPD) return operand.elements();
  const int64_t rows = operand.dim(2), tokens = q_BSHD.dim(1);
  const int64_t row_elements = operand.dim(1) * operand.dim(3);
  if (access == Access::kWrite) return operand.dim(0) * tokens * row_elements;
  return q_BSHD.dim(0) * (window > 0 ? std::min(window + tokens - 1, rows) : rows) * row_elements;
}

}  // namespace shale
