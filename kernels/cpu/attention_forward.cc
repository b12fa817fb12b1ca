// Attention, forward. A thread takes a strip of queries at a time: it computes their scores with all their keys, the
// softmax in place, and the matmul with the values. The kernel is bound by arithmetic, as long as rows are prefetched.
// attention_sizes-inl.h describes how the work is divided.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_forward.cc"
#include <algorithm>
#include <cmath>

#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/check.h"
#include "kernels/cpu/attention_forward_amx-inl.h"
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
struct ForwardScratch {
  ForwardScratch(const AttentionSizes& sizes, Carver& carver)
      : k_tiles(carver.Take(sizes.padded_s() * sizes.padded_d())),
        v(carver.Take(sizes.padded_s() * sizes.padded_d())),
        strip(carver.Take(kQueries * sizes.strip_stride())),
        q(carver.Take(kQueries * sizes.padded_d())),
        out(carver.Take(kQueries * sizes.padded_d())) {}

  // If matmuls multiply pairs, all but `out` hold pairs and use half of their memory.
  float* k_tiles;  // [S / kTile][D][kTile]
  float* v;        // [D / kTile][S][kTile]
  float* strip;    // [kQueries, S], scores and then their exponentials
  float* q;        // [kQueries, D]; before that, temporary memory to transpose in
  float* out;      // [kQueries, D]
};

// The largest score and the sum of exponentials of each row of a strip.
struct SoftmaxTotals {
  float largest[kQueries], sum[kQueries];
};

// If kPairs, the operands of both matmuls are pairs of bf16 (pair_tile-inl.h).
template <class T, bool kPairs>
class Forward {
 public:
  using Head = ForwardHead<T>;

  Forward(const AttentionForward& op, Carver& carver)
      : sizes_(op), scale_(op.scale), cap_(op.cap), own_(sizes_, carver) {}

  // Computes `out` and lse of `head`. Packs keys and values unless the previous head, of the same group, has. `next` is
  // the head that runs next, whose rows are prefetched; it is null for the last head.
  void Run(const Head& head, const Head* next) {
    const bool packed = has_packed_ && !head.first_of_group;
    has_packed_ = true;
    sizes_.position_ids = head.position_ids;
    for (int64_t i0 = 0; i0 < sizes_.s; i0 += kQueries) {
      const int64_t queries = std::min(kQueries, sizes_.s - i0), then = i0 + queries;
      if (!packed) {
        sizes_.ForNewKeys(i0, kQueries, [&](int64_t j, int64_t count) HWY_ATTR {
          Form::PackTiles(head.k, j, count, d_, own_.k_tiles, score_d_, /*room=*/own_.q);
          Form::PackPanels(sizes_, head.v, j, count, own_.v);
        });
      }
      Form::PackAlong(head.q, i0, queries, d_, own_.q, score_d_);
      std::fill(own_.q + queries * score_d_, own_.q + RoundUp(queries, kGroup) * score_d_, 0.0f);

      RowPrefetch ahead;
      ahead.Add(head.out[i0], head.out.stride, queries, d_);
      AddNextKeys(sizes_, head, !packed, next, i0, kQueries, ahead);
      if (then < sizes_.s) {
        AddQueries(head, then, ahead);
      } else if (next != nullptr) {
        AddQueries(*next, 0, ahead);
      }
      const int64_t groups = CeilDivide(queries, kGroup);
      ahead.Spread(groups * ((sizes_.EndKey(then - 1) - sizes_.Origin(i0)) / kTile + padded_d_ / kTile));

      Form::template MultiplyTiles<Result::kScale>(sizes_, i0, queries, own_.q, own_.k_tiles, score_d_,
                                                   Form::Places(d_), scale_, own_.strip, stride_, ahead);
      SoftmaxTotals totals;
      for (int64_t r = 0; r < queries; r += kGroup) Softmax(i0, r, queries, totals);
      Form::SumOverKeys(sizes_, i0, queries, own_.strip, stride_, own_.v, padded_d_, own_.out, ahead);
      for (int64_t i = 0; i < queries; ++i) {
        head.lse[i0 + i] = totals.largest[i] + std::log(totals.sum[i]);
        Form::Unpack(own_.out + i * padded_d_, 0, 1, d_, 1 / totals.sum[i], head.out[i0 + i], 0);
      }
    }
  }

 private:
  using Form = Operands<T, kPairs>;
  static constexpr int64_t kUnit = Form::kUnit;

  // Adds to `ahead` the rows of the queries of the strip from query i0 on.
  void AddQueries(const ForwardHead<T>& head, int64_t i0, RowPrefetch& ahead) const {
    ahead.Add(head.q[i0], head.q.stride, std::min(kQueries, sizes_.s - i0), d_);
  }

  // Computes the exponentials of the scores, and their sums, for the group of queries that begins with query i0 + r.
  void Softmax(int64_t i0, int64_t r, int64_t queries, SoftmaxTotals& totals) {
    const SliceRange keys(sizes_, i0 + r);
    const int64_t origin = sizes_.Origin(i0), begin = keys.begin - origin, end = keys.end - origin;
    const int64_t last = std::min(r + kGroup, queries);
    // Finds all the largest scores before the first exponential. Otherwise the exponentials of each row would wait for
    // that row's largest score.
    for (int64_t i = r; i < last; ++i) {
      float* row = own_.strip + i * stride_;
      if (cap_ > 0) CapRow(row, begin, end, 1 / cap_, cap_);
      HideColumns(row, begin, sizes_.FirstKey(i0 + i) - origin, sizes_.EndKey(i0 + i) - origin, end);
      totals.largest[i] = LargestOf(row, begin, end);
    }
    for (int64_t i = r; i < last; ++i) {
      float* row = own_.strip + i * stride_;
      const float largest = totals.largest[i];
      totals.sum[i] = kPairs ? ExpRowRounded(row, begin, end, 1.0f, largest) : ExpRow(row, begin, end, largest);
    }
  }

  AttentionSizes sizes_;
  bool has_packed_ = false;
  const float scale_, cap_;
  const ForwardScratch own_;
  const int64_t d_ = sizes_.d, padded_d_ = sizes_.padded_d(), stride_ = sizes_.strip_stride();
  const int64_t score_d_ = padded_d_ / kUnit;
};

#if HWY_TARGET != HWY_AVX3
using AmxForward = Forward<BFloat16, false>;  // Never used: FormOf does not return kAmx.
#endif

// Computes query heads [begin, end), numbered through all sequences.
void AttentionForwardHeads(const AttentionForward& op, CpuMatMuls cpu_matmuls, int64_t begin, int64_t end,
                           std::byte* scratch) {
  RunHeads<Forward, AmxForward>(op, cpu_matmuls, begin, end, scratch);
}

int64_t AttentionForwardScratch(const AttentionForward& op, CpuMatMuls cpu_matmuls) {
  return ThreadScratch<ForwardScratch, AmxForward>(op, cpu_matmuls);
}

}  // namespace shale::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace shale::cpu {
namespace {

HWY_EXPORT(AttentionForwardHeads);
HWY_EXPORT(AttentionForwardScratch);

// A thread computes heads.
int64_t Items(const AttentionForward& op) { return op.q_BSHD.dim(0) * op.q_BSHD.dim(2); }

int64_t ThreadScratchBytes(const AttentionForward& op, const Context& context) {
  return HWY_DYNAMIC_DISPATCH(AttentionForwardScratch)(op, context.cpu_matmuls);
}

}  // namespace

int64_t ScratchBytesOf(const AttentionForward& op, const Context& context) {
  return AttentionScratch(Items(op), ThreadScratchBytes(op, context), context);
}

absl::Status Run(const AttentionForward& op, Scratch scratch, const Context& context) {
  return RunAttention(op, Items(op), ThreadScratchBytes(op, context), scratch, context,
                      [&](int64_t begin, int64_t end, std::byte* scratch) {
                        HWY_DYNAMIC_DISPATCH(AttentionForwardHeads)
                        (op, context.cpu_matmuls, begin, end, scratch);
                      });
}

}  // namespace shale::cpu
#endif
