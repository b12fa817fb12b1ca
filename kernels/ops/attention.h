// Attention. kernels/ops.h says what holds for all ops.
//
// B sequences of S tokens, H query heads, G key/value heads, D head width, C sequences and P positions of a cache.
//
// [Note: position ids] A sequence may hold several documents, one after another. `position_ids` then gives, for every
// token, its position in its document: 0 for the first token of a document, and otherwise one more than that of the
// token before. Tokens of different documents do not see each other, and embeddings of positions use these positions.
// Without `position_ids`, a sequence is one document.
//
// [Note: begins] While text is generated, the tokens of a sequence come in several runs of a program. `begins` then
// gives, for every sequence, the position of the first token of this run: as many tokens have come before. Token s of
// sequence b is at position begins[b] + s. Without `begins`, positions begin at 0.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "kernels/op.h"
#include "kernels/tensor.h"

namespace shale {

// Attention with grouped heads: query head h reads key/value head h / (H / G). scores = scale q k^T over the keys that
// query i sees, or with a cap above 0, cap tanh(scale q k^T / cap), which stays within the cap (Gemma 2, 2024); p =
// softmax(scores), out = p v, lse = log-sum-exp of the scores. If `causal`, query i sees the keys j <= i (and j > i -
// window if window > 0), otherwise every key of its sequence. Memory is linear in S: no [S, S] matrix exists (Dao,
// 2023). If act is bf16 or f16, a backend may round exp(score - largest score of the row so far) to it for the matmul
// with v; the sum that divides it is taken before rounding. With `position_ids`, a query sees no key before its
// document.
// REQUIRES: scale > 0, cap >= 0, window is 0 unless causal, and there are no position_ids unless causal.
struct AttentionForward {
  static constexpr absl::string_view kName = "AttentionForward";
  Tensor q_BSHD, k_BSGD, v_BSGD;  // act, outer dimensions may be strided
  Tensor out_BSHD;                // act, outer dimensions may be strided
  Tensor lse_BHS;                 // f32
  Tensor position_ids_BS;         // i32, optional
  float scale = 1;
  int64_t window = 0;
  bool causal = true;
  float cap = 0;  // 0: none
  std::vector<int64_t> LibraryAttributes() const;
  double flops() const;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("q", op.q_BSHD, Access::kRead);
    v("k", op.k_BSGD, Access::kRead);
    v("v", op.v_BSGD, Access::kRead);
    v("position_ids", op.position_ids_BS, Access::kRead);
    v("out", op.out_BSHD, Access::kWrite);
    v("lse", op.lse_BHS, Access::kWrite);
  }
};

// Recomputes p from q, k and lse; then
//   delta = rowsum(d_out * out); ds = p (d_out v^T - delta) scale; d_q = ds k; d_v = p^T d_out; d_k = ds^T q.
// With a cap, ds is multiplied by the derivative of the cap, 1 - (score / cap)^2.
// d_k and d_v are summed over the query heads of a group. If act is bf16 or f16, a backend may round p and ds to it for
// these three matmuls.
struct AttentionBackward {
  static constexpr absl::string_view kName = "AttentionBackward";
  Tensor q_BSHD, k_BSGD, v_BSGD, out_BSHD;  // act, outer dimensions may be strided
  Tensor lse_BHS;                           // f32
  Tensor d_out_BSHD;                        // act, outer dimensions may be strided
  Tensor d_q_BSHD, d_k_BSGD, d_v_BSGD;      // act, outer dimensions may be strided
  Tensor position_ids_BS;                   // i32, optional
  float scale = 1;
  int64_t window = 0;
  bool causal = true;
  float cap = 0;  // 0: none
  std::vector<int64_t> LibraryAttributes() const;
  double flops() const;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("q", op.q_BSHD, Access::kRead);
    v("k", op.k_BSGD, Access::kRead);
    v("v", op.v_BSGD, Access::kRead);
    v("out", op.out_BSHD, Access::kRead);
    v("lse", op.lse_BHS, Access::kRead);
    v("d_out", op.d_out_BSHD, Access::kRead);
    v("position_ids", op.position_ids_BS, Access::kRead);
    v("d_q", op.d_q_BSHD, Access::kWrite);
    v("d_k", op.d_k_BSGD, Access::kWrite);
    v("d_v", op.d_v_BSGD, Access::kWrite);
  }
};

// Attention of the next S tokens of each sequence, over what a cache holds of the tokens before them. First stores the
// new keys and values: those of position p go to row p mod P of the cache, for all S tokens. Then the token at position
// p sees the keys of positions 0 to p (or, if window > 0, p - window + 1 to p), grouped and computed as in
// AttentionForward. Rows of the cache that no token sees are not read. Tokens of a run that are not wanted may come
// last: a later run whose `begins` is smaller stores over them. The tokens of one sequence may be those of all C that
// the cache holds: then their keys and values are stored for each, and read from the first. REQUIRES: B is C or 1;
// scale > 0; begins >= 0; begins + S <= P, or window > 0 and window + S - 1 <= P, so that no token stores over a key
// that another one sees.
struct CachedAttention {
  static constexpr absl::string_view kName = "CachedAttention";
  Tensor q_BSHD, k_BSGD, v_BSGD;  // act, outer dimensions may be strided
  Tensor begins_B;                // i32 ([Note: begins])
  Tensor out_BSHD;                // act, outer dimensions may be strided
  Tensor keys_CGPD, values_CGPD;  // act, the cache of P positions
  float scale = 1;
  int64_t window = 0;
  float cap = 0;  // As in AttentionForward.
  double flops() const;
  int64_t ElementsMoved(const Tensor& operand, Access access) const;
  template <class Self, class Visitor>
  static void Visit(Self& op, Visitor&& v) {
    v("q", op.q_BSHD, Access::kRead);
    v("k", op.k_BSGD, Access::kRead);
    v("v", op.v_BSGD, Access::kRead);
    v("begins", op.begins_B, Access::kRead);
    v("keys", op.keys_CGPD, Access::kReadWrite);
    v("values", op.values_CGPD, Access::kReadWrite);
    v("out", op.out_BSHD, Access::kWrite);
  }
};

}  // namespace shale
