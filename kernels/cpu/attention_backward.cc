// Attention, backward. A thread takes a strip of queries at a time: it recomputes their probabilities from scores and
// log-sum-exp, then computes the gradient of the scores, and from it the gradient of the queries. It sums the gradients
// of keys and values over all queries, and over the query heads of the group, in fp32 in scratch. The kernel is bound
// by arithmetic, as long as rows are prefetched. attention_sizes-inl.h describes how the work is divided.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_backward.cc"
#include <algorithm>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/check.h"
#include "kernels/cpu/attention_backward_amx-inl.h"
#include "kernels/cpu/attention_heads.h"
#include "kernels/cpu/attention_operands-inl.h"
#include "kernels/cpu/attention_sizes-inl.h"
#include "kernels/cpu/attention_softmax-inl.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/row_prefetch.h"
#include "kernels/cpu/simd-inl.h"
#include "kernels/integers.h"
#include "kernels/ops/attention.h"

HWY_BEFORE_NAMESPACE();
namespace shale::cpu::HWY_NAMESPACE {

// One thread's scratch.
struct BackwardScratch {
  BackwardScratch(const AttentionSizes& sizes, Carver& carver)
      : k(carver.Take(sizes.padded_s() * sizes.padded_d())),
        k_tiles(carver.Take(sizes.padded_s() * sizes.padded_d())),
        v_tiles(carver.Take(sizes.padded_s() * sizes.padded_d())),
        d_k(carver.Take(sizes.padded_s() * sizes.padded_d())),
        d_v(carver.Take(sizes.padded_s() * sizes.padded_d())),
        p(carver.Take(kQueries * sizes.strip_stride())),
        ds(carver.Take(kQueries * sizes.strip_stride())),
        q(carver.Take(kQueries * sizes.padded_d())),
        d_out(carver.Take(kQueries * sizes.padded_d())),
        rows(carver.Take(kQueries * sizes.padded_d())),
        ds_along(carver.Take(kQueries * sizes.strip_stride() / 2)) {}

  float* k;                  // [D / kTile][S][kTile]
  float *k_tiles, *v_tiles;  // [S / kTile][D][kTile]
  float *d_k, *d_v;          // [S, D]
  float *p, *ds;             // [kQueries, S]. p: scores, then probabilities. ds: d_out v^T, then the gradient of q k^T.
  float *q, *d_out;          // [kQueries, D]
  float* rows;               // [kQueries, D]. In turn: temporary memory to transpose in; pairs of q and of d_out; d_q.
  float* ds_along;           // [kQueries, S / 2]: ds as pairs along keys.
};

// If kPairs, the operands of all matmuls are pairs of bf16 (pair_tile-inl.h).
template <class T, bool kPairs>
class Backward {
 public:
  using Head = BackwardHead<T>;

  Backward(const AttentionBackward& op, Carver& carver)
      : sizes_(op), scale_(op.scale), cap_(op.cap), own_(sizes_, carver) {}

  // Writes d_q of `head` and adds to d_k and d_v of its group. The first head of a group packs keys and values; the
  // last head writes d_k and d_v. `next` is the head that runs next, whose rows are prefetched; it is null for the last
  // head.
  void Run(const Head& head, const Head* next) {
    sizes_.position_ids = head.position_ids;
    if (head.first_of_group) {
      for (float* sum : {own_.d_k, own_.d_v}) std::fill(sum, sum + sizes_.padded_s() * padded_d_, 0.0f);
    }
    for (int64_t i0 = 0; i0 < sizes_.s; i0 += kQueries) {
      const int64_t queries = std::min(kQueries, sizes_.s - i0), then = i0 + queries;
      if (head.first_of_group) {
        sizes_.ForNewKeys(i0, kQueries, [&](int64_t j, int64_t count) HWY_ATTR { PackKeys(head, j, count); });
      }
      PackQueries(head, i0, queries);
      const auto terms = TermsOf<kQueries>(head, i0, queries, RoundUp(queries, kGroup), d_);

      RowPrefetch ahead;
      ahead.Add(head.d_q[i0], head.d_q.stride, queries, d_);
      AddNextKeys(sizes_, head, head.first_of_group, next, i0, kQueries, ahead);
      if (then < sizes_.s) {
        AddQueries(head, then, ahead);
      } else if (next != nullptr) {
        AddQueries(*next, 0, ahead);
      }
      for (const auto& rows : {head.d_k, head.d_v}) {
        ahead.Add(rows[i0], rows.stride, head.last_of_group ? queries : 0, d_);
      }
      const int64_t groups = CeilDivide(queries, kGroup), tiles = padded_d_ / kTile;
      const int64_t keys = sizes_.EndKey(then - 1) - sizes_.FirstGroup(i0);
      ahead.Spread(groups * (2 * (keys / kTile) + tiles) + 2 * (keys / kGroup) * tiles);

      const int64_t places = Form::Places(d_);
      Form::template MultiplyTiles<Result::kScale>(sizes_, i0, queries, q_along_, own_.k_tiles, score_d_, places,
                                                   scale_, own_.p, stride_, ahead);
      Form::template MultiplyTiles<Result::kWrite>(sizes_, i0, queries, d_out_along_, own_.v_tiles, score_d_, places,
                                                   1.0f, own_.ds, stride_, ahead);
      for (int64_t r = 0; r < queries; r += kGroup) Softmax(i0, r, queries, terms);
      Form::SumOverKeys(sizes_, i0, queries, ds_along_, ds_along_stride_, own_.k, padded_d_, own_.rows, ahead);
      Form::Unpack(own_.rows, padded_d_, queries, d_, scale_, head.d_q[i0], head.d_q.stride);
      AddToKeys(i0, queries, own_.p, own_.d_out, own_.d_v, ahead);
      AddToKeys(i0, queries, own_.ds, own_.q, own_.d_k, ahead);
    }
    if (head.last_of_group) {
      Form::Unpack(own_.d_k, padded_d_, sizes_.s, d_, scale_, head.d_k[0], head.d_k.stride);
      Form::Unpack(own_.d_v, padded_d_, sizes_.s, d_, 1.0f, head.d_v[0], head.d_v.stride);
    }
  }

 private:
  using Form = Operands<T, kPairs>;
  static constexpr int64_t kUnit = Form::kUnit;

  // Adds to `ahead` the rows of the queries of the strip from query i0 on.
  void AddQueries(const BackwardHead<T>& head, int64_t i0, RowPrefetch& ahead) const {
    const int64_t queries = std::min(kQueries, sizes_.s - i0);
    for (const auto& rows : {head.q, head.d_out, head.out}) ahead.Add(rows[i0], rows.stride, queries, d_);
  }

  // Packs keys and values [i0, i0 + count).
  void PackKeys(const BackwardHead<T>& head, int64_t i0, int64_t count) {
    Form::PackPanels(sizes_, head.k, i0, count, own_.k);
    Form::PackTiles(head.k, i0, count, d_, own_.k_tiles, score_d_, /*room=*/own_.rows);
    Form::PackTiles(head.v, i0, count, d_, own_.v_tiles, score_d_, /*room=*/own_.rows);
  }

  void PackQueries(const BackwardHead<T>& head, int64_t i0, int64_t count) {
    const int64_t padded = RoundUp(count, kGroup);
    Form::PackAlong(head.q, i0, count, d_, q_along_, score_d_);
    Form::PackAlong(head.d_out, i0, count, d_, d_out_along_, score_d_);
    for (float* rows : {q_along_, d_out_along_}) std::fill(rows + count * score_d_, rows + padded * score_d_, 0.0f);
    if constexpr (kPairs) {
      Form::PackAcross(head.q, i0, count, d_, own_.q, padded_d_);
      Form::PackAcross(head.d_out, i0, count, d_, own_.d_out, padded_d_);
    }
  }

  // Computes probabilities and gradients of the scores for the group of queries that begins with query i0 + r.
  void Softmax(int64_t i0, int64_t r, int64_t queries, const RowTerms<kQueries>& terms) {
    const SliceRange keys(sizes_, i0 + r);
    const int64_t origin = sizes_.Origin(i0), begin = keys.begin - origin, end = keys.end - origin;
    for (int64_t i = r; i < std::min(r + kGroup, queries); i += 2) {
      float *p = own_.p + i * stride_, *ds = own_.ds + i * stride_;
      for (int64_t n = 0; n < 2; ++n) {
        const int64_t query = i0 + i + n;
        if (cap_ > 0) {
          CapRowBackward(p + n * stride_, ds + n * stride_, begin, end, 1 / cap_, cap_, terms.delta[i + n]);
        }
        HideColumns(p + n * stride_, begin, sizes_.FirstKey(query) - origin, sizes_.EndKey(query) - origin, end);
      }
      if constexpr (kPairs) {
        BFloat16* ds_along = reinterpret_cast<BFloat16*>(ds_along_ + i * ds_along_stride_);
        SoftmaxBackwardPairRows(p, ds, stride_, begin, end, 1.0f, terms.lse + i, terms.delta + i, ds_along, stride_);
      } else {
        SoftmaxBackwardRow(p, ds, begin, end, terms.lse[i], terms.delta[i]);
        SoftmaxBackwardRow(p + stride_, ds + stride_, begin, end, terms.lse[i + 1], terms.delta[i + 1]);
      }
    }
  }

  // Adds to `sums`, which are d_k or d_v of all keys, the contribution of the queries of the strip: b times the columns
  // of a, which are probabilities or their gradients. Each group of keys takes only the queries that see any of them.
  void AddToKeys(int64_t i0, int64_t queries, const float* a, const float* b, float* sums, RowPrefetch& ahead) {
    for (int64_t j = sizes_.FirstGroup(i0); j < sizes_.EndKey(i0 + queries - 1); j += kGroup) {
      const int64_t begin = std::max<int64_t>(0, sizes_.FirstQuery(j) - i0);
      const int64_t end = sizes_.RowsSeeingUpTo(j + kGroup - 1, i0, queries);
      const int64_t first = begin / kUnit, places = Form::Places(end) - first;
      const float* x = a + first * kUnit * stride_ + j - sizes_.Origin(i0);
      for (int64_t n = 0; n < padded_d_; n += kTile) {
        ahead.Step();
        float* c = sums + j * padded_d_ + n;
        PrefetchSums(c + kGroup * padded_d_);
        Form::template Multiply<Operand::kColumns, Result::kAdd>(x, kUnit * stride_, b + first * padded_d_ + n,
                                                                 padded_d_, places, 1.0f, c, padded_d_);
      }
    }
  }

  // Prefetches a tile of sums, because d_k and d_v do not fit into the L1 cache. The address may lie past their ends.
  void PrefetchSums(const float* c) const {
    for (int64_t r = 0; r < kGroup; ++r) PrefetchElements(c + r * padded_d_, kTile);
  }

  AttentionSizes sizes_;
  const float scale_, cap_;
  const BackwardScratch own_;
  const int64_t d_ = sizes_.d, padded_d_ = sizes_.padded_d(), stride_ = sizes_.strip_stride();
  const int64_t score_d_ = padded_d_ / kUnit;
  // Operands with places along their rows. For fp32 they are the same arrays as those with places across rows. Pairs
  // need arrays of their own, and the first two then share the memory of d_q, which is computed after their last use.
  float* const q_along_ = kPairs ? own_.rows : own_.q;
  float* const d_out_along_ = kPairs ? own_.rows + kQueries * score_d_ : own_.d_out;
  float* const ds_along_ = kPairs ? own_.ds_along : own_.ds;
  const int64_t ds_along_stride_ = stride_ / kUnit;
};

#if HWY_TARGET != HWY_AVX3
using AmxBackward = Backward<BFloat16, false>;  // Never used: FormOf does not return kAmx.
#endif

// Computes query heads [begin, end), numbered through all sequences. The range must consist of complete groups.
void AttentionBackwardHeads(const AttentionBackward& op, CpuMatMuls cpu_matmuls, int64_t begin, int64_t end,
                            std::byte* scratch) {
  RunHeads<Backward, AmxBackward>(op, cpu_matmuls, begin, end, scratch);
}

int64_t AttentionBackwardScratch(const AttentionBackward& op, CpuMatMuls cpu_matmuls) {
  return ThreadScratch<BackwardScratch, AmxBackward>(op, cpu_matmuls);
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(AttentionBackwardHeads);
HWY_EXPORT(AttentionBackwardScratch);

// A thread computes the heads of a group, which share keys.
int64_t Items(const AttentionBackward& op) { return op.q_BSHD.dim(0) * op.k_BSGD.dim(2); }

int64_t ThreadScratchBytes(const AttentionBackward& op, const Context& context) {
  return HWY_DYNAMIC_DISPATCH(AttentionBackwardScratch)(op, context.cpu_matmuls);
}

}  // namespace

int64_t ScratchBytesOf(const AttentionBackward& op, const Context& context) {
  return AttentionScratch(Items(op), ThreadScratchBytes(op, context), context);
}

absl::Status Run(const AttentionBackward& op, Scratch scratch, const Context& context) {
  const int64_t heads_per_group = op.q_BSHD.dim(2) / std::max<int64_t>(op.k_BSGD.dim(2), 1);
  return RunAttention(op, Items(op), ThreadScratchBytes(op, context), scratch, context,
                      [&](int64_t begin, int64_t end, std::byte* scratch) {
                        HWY_DYNAMIC_DISPATCH(AttentionBackwardHeads)
                        (op, context.cpu_matmuls, begin * heads_per_group, end * heads_per_group, scratch);
                      });
}

}  // namespace shale::cpu
#endif
