// The rows of the heads that attention's kernels read and write, which of them to prefetch, and how threads share them.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/row_prefetch.h"
#include "kernels/integers.h"
#include "kernels/ops/attention.h"
#include "kernels/reference/index_checks.h"
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

// Returns the position ids of sequence b, or null if there are none.
inline const int32_t* PositionIdsOf(const Tensor& position_ids_BS, int64_t b) {
  return position_ids_BS.present() ? position_ids_BS.as<const int32_t>() + b * position_ids_BS.dim(1) : nullptr;
}

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
        lse(op.lse_BHS.as<float>() + (b * op.q_BSHD.dim(2) + h) * op.q_BSHD.dim(1)),
        position_ids(PositionIdsOf(op.position_ids_BS, b)) {}

  bool first_of_group;
  HeadRows<T> q, k, v, out;
  float* lse;
  const int32_t* position_ids;
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
        lse(op.lse_BHS.as<const float>() + (b * op.q_BSHD.dim(2) + h) * op.q_BSHD.dim(1)),
        position_ids(PositionIdsOf(op.position_ids_BS, b)) {}

  bool first_of_group, last_of_group;
  HeadRows<T> q, k, v, out, d_out, d_q, d_k, d_v;
  const float* lse;
  const int32_t* position_ids;
};

// Adds to `ahead`, for a strip of at most `rows` queries from i0 on, rows of the keys and values that are packed next.
// `packs` says that `head` packs its keys. `next` is the head that runs next, or null; it packs its keys if it is the
// first of its group. With a causal mask, these are the keys that the next strip packs. Without one, the first strip of
// the next head packs all its keys, and every strip of `head` prefetches its share of them. Sizes is the AttentionSizes
// of any target.
template <class Sizes, class Head>
void AddNextKeys(const Sizes& sizes, const Head& head, bool packs, const Head* next, int64_t i0, int64_t rows,
                 RowPrefetch& ahead) {
  const bool same_head = sizes.causal && i0 + rows < sizes.s, next_packs = next != nullptr && next->first_of_group;
  if (same_head ? !packs : !next_packs) return;
  const Head& packing = same_head ? head : *next;
  const int64_t j = same_head ? i0 + rows : sizes.causal ? 0 : i0, count = std::min(rows, sizes.s - j);
  for (const auto& of : {packing.k, packing.v}) ahead.Add(of[j], of.stride, count, sizes.d);
}

// Returns the scratch of all threads that share out `items`, each of which needs thread_bytes.
inline int64_t AttentionScratch(int64_t items, int64_t thread_bytes, const Context& context) {
  return thread_bytes * std::min<int64_t>(context.team->threads(), items);
}

// Shares out the items of the op among the threads: run(begin, end, scratch) computes [begin, end). Adjacent items
// share a block, because they may share keys. The bounds of blocks change no result.
template <class OpType, class RunItems>
absl::Status RunAttention(const OpType& op, int64_t items, int64_t thread_bytes, Scratch scratch,
                          const Context& context, const RunItems& run) {
  SHALE_RETURN_IF_ERROR(CheckPositionIds(op.kName, op.position_ids_BS));
  if (items == 0) return absl::OkStatus();
  const int64_t block = CeilDivide(items, std::min<int64_t>(context.team->threads(), items));
  ParallelFor(*context.team, items, block,
              [&](int64_t begin, int64_t end) { run(begin, end, scratch.data + begin / block * thread_bytes); });
  return absl::OkStatus();
}

}  // namespace shale::cpu
