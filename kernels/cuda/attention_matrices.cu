// Attention on tensor cores, forward (FlashAttention-2; Dao, 2023). See attention_matrices.h for its parts.
//
// A block owns kRows queries of a head, and loops over the keys that they see, kColumns at a time. Its warps keep the
// queries in registers if heads have at most 128 elements, and otherwise load them from shared memory again and again.
// A warp computes scores, the softmax online, and the weighted sum of values, whose weights are rounded to the dtype of
// the operands; the sum that divides them is that of the weights before. Blocks of late queries come first: if the op
// is causal, these see the most keys. A value of v that is not finite also reaches queries of the tile that do not see
// it, because its product with 0 is NaN. The step is not finite in any case.
#include <algorithm>

#include "kernels/cuda/attention_matrices.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/softmax.h"
#include "kernels/integers.h"
#include "kernels/ops/attention.h"

namespace shale::cuda {
namespace {

template <int kWidth>
struct ForwardMatrixTiles : MatrixTiles<kWidth, 4, 64> {
  using Base = MatrixTiles<kWidth, 4, 64>;
  // Offsets in shared memory, in elements. If warps keep the queries in registers, values then take the place of these.
  static constexpr int kK = 0, kV = kK + Base::kColumnTile, kQ = Base::kRowsInRegisters ? kV : kV + Base::kColumnTile,
                       kElements = kQ + Base::kRowTile;
  static_assert(Base::kRowTile == Base::kColumnTile && 2 * kElements <= kLeastSharedBytes);
};

// Scales and caps scores, in powers of 2. Asks for the cap once for all of them: a branch for each keeps the compiler
// from interleaving their arithmetic.
template <class TilesT>
SHALE_DEVICE void ScaleScores(float scale, float cap, typename TilesT::Scores& scores) {
  if (cap > 0) {
    SHALE_UNROLL for (int j = 0; j < TilesT::kColumns / 8; ++j) {
      SHALE_UNROLL for (int e = 0; e < 4; ++e) scores[j][e] = kLog2E * (cap * tanhf(scores[j][e] * scale / cap));
    }
  } else {
    SHALE_UNROLL for (int j = 0; j < TilesT::kColumns / 8; ++j) {
      SHALE_UNROLL for (int e = 0; e < 4; ++e) scores[j][e] = kLog2E * (scores[j][e] * scale);
    }
  }
}

// Adds the scores of the lane's row i in a tile to the softmax of that row so far: its largest score, and the sum of
// this lane's columns. score_at(j, e) gives element (j, e) of `scores`, which becomes the weight of its column. Scales
// the row of the result to the largest score.
template <class TilesT, class ScoreAt>
SHALE_DEVICE void TakeRow(int i, const ScoreAt& score_at, typename TilesT::Scores& scores, float& largest, float& sum,
                          typename TilesT::Result& result) {
  float now_largest = largest;
  SHALE_UNROLL for (int j = 0; j < TilesT::kColumns / 8; ++j) {
    SHALE_UNROLL for (int e = 2 * i; e < 2 * i + 2; ++e) {
      scores[j][e] = score_at(j, e);
      now_largest = fmaxf(now_largest, scores[j][e]);
    }
  }
  SHALE_UNROLL for (int lanes = 1; lanes <= 2; lanes *= 2) {
    now_largest = fmaxf(now_largest, __shfl_xor_sync(kAllLanes, now_largest, lanes));
  }
  const float shift = ShiftOf(now_largest), correction = Exp2(largest - shift);
  largest = now_largest;
  sum *= correction;
  SHALE_UNROLL for (int j = 0; j < TilesT::kColumns / 8; ++j) {
    SHALE_UNROLL for (int e = 2 * i; e < 2 * i + 2; ++e) {
      scores[j][e] = Exp2(scores[j][e] - shift);
      sum += scores[j][e];
    }
  }
  SHALE_UNROLL for (int d = 0; d < TilesT::kWidth / 8; ++d) {
    SHALE_UNROLL for (int e = 2 * i; e < 2 * i + 2; ++e) result[d][e] *= correction;
  }
}

template <class TilesT, class T>
SHALE_KERNEL SHALE_BOUNDS(TilesT::kThreads, 2)
    AttentionForwardMatrixKernel(Heads<T> q, Heads<T> k, Heads<T> v, Heads<T> out, Global<float> lse_BHS, int heads,
                                 int heads_per_group, int query_tiles, Mask mask, float scale, float cap) {
  SHALE_DYNAMIC_SHARED(T, shared);
  const int first_query = (query_tiles - 1 - static_cast<int>(blockIdx.x % query_tiles)) * TilesT::kRows;
  const int head = blockIdx.x / query_tiles, b = head / heads, h = head % heads, g = h / heads_per_group;
  const int end_of_keys = mask.EndOfKeys(first_query + TilesT::kRows - 1);
  const int warp_row = static_cast<int>(threadIdx.x) / kWarpThreads * 16;
  int first_key = mask.FirstKey(b, first_query);
  BeginCopyOfRows<TilesT, TilesT::kRows>(q, b, h, first_query, shared, TilesT::kQ);
  BeginCopyOfRows<TilesT, TilesT::kColumns>(k, b, g, first_key, shared, TilesT::kK);
  int query[2], seen_from[2];
  SHALE_UNROLL for (int i = 0; i < 2; ++i) {
    query[i] = first_query + warp_row + LaneRow(i);
    seen_from[i] = mask.FirstKey(b, query[i]);
  }
  typename TilesT::Left queries;
  if constexpr (TilesT::kRowsInRegisters) {
    WaitForCopies();
    __syncthreads();
    // The next barrier, in the loop, comes before values take the place of the queries.
    LoadRows<TilesT>(shared, TilesT::kQ, warp_row, queries);
  }
  const auto left = [&](int step, unsigned(&a)[4]) {
    GiveLeft<TilesT>(queries, shared, TilesT::kQ, warp_row, step, a);
  };
  typename TilesT::Result result = {};
  float largest[2] = {-kInfinity, -kInfinity}, sum[2] = {};  // Of the scores so far. `sum` counts this lane's columns.
  for (; first_key < end_of_keys; first_key += TilesT::kColumns) {
    WaitForCopies();
    __syncthreads();  // The keys are here, and nobody reads the values before them any more.
    BeginCopyOfRows<TilesT, TilesT::kColumns>(v, b, g, first_key, shared, TilesT::kV);
    typename TilesT::Scores scores;
    MultiplyRows<TilesT>(left, shared, TilesT::kK, scores);
    ScaleScores<TilesT>(scale, cap, scores);
    SHALE_UNROLL for (int i = 0; i < 2; ++i) {
      const auto score_at = [&](int j, int e) {
        const int key = first_key + 8 * j + LaneColumn(e);
        return mask.Sees(query[i], key, seen_from[i]) ? scores[j][e] : -kInfinity;
      };
      TakeRow<TilesT>(i, score_at, scores, largest[i], sum[i], result);
    }
    WaitForCopies();
    __syncthreads();  // The values are here, and nobody reads the keys any more.
    const int next = first_key + TilesT::kColumns;
    if (next < end_of_keys) BeginCopyOfRows<TilesT, TilesT::kColumns>(k, b, g, next, shared, TilesT::kK);
    AddWeightedRows<TilesT>(scores, shared, TilesT::kV, result);
  }

  float factor[2];
  SHALE_UNROLL for (int i = 0; i < 2; ++i) {
    SHALE_UNROLL for (int lanes = 1; lanes <= 2; lanes *= 2) sum[i] += __shfl_xor_sync(kAllLanes, sum[i], lanes);
    factor[i] = 1.0f / sum[i];
    if (LaneColumn(0) == 0 && query[i] < q.length) {
      lse_BHS.Store(static_cast<int64_t>(head) * q.length + query[i], largest[i] * kLn2 + logf(sum[i]));
    }
  }
  StoreRows<TilesT>(out, b, h, first_query + warp_row, result, factor);
}

}  // namespace

bool TakesMatrices(std::initializer_list<const Tensor*> operands) {
  const Tensor& q = **operands.begin();
  return q.dtype != DType::kFloat32 && q.dim(3) % 8 == 0 && q.dim(3) <= 256 &&
         std::all_of(operands.begin(), operands.end(), [](const Tensor* t) { return RowsAligned(*t); });
}

absl::Status RunOnMatrices(const AttentionForward& op, StreamHandle stream) {
  const int64_t B = op.q_BSHD.dim(0), S = op.q_BSHD.dim(1), H = op.q_BSHD.dim(2), G = op.k_BSGD.dim(2);
  return WithMatrixTiles<ForwardMatrixTiles>(op.q_BSHD.dim(3), [&](auto tiles) {
    using TilesT = decltype(tiles);
    return WithHalf(op.q_BSHD.dtype, [&](auto element) {
      using T = decltype(element);
      const int64_t query_tiles = CeilDivide(S, TilesT::kRows);
      return Launch("AttentionForward", AttentionForwardMatrixKernel<TilesT, T>,
                    {.grid = dim3(static_cast<unsigned>(B * H * query_tiles)),
                     .block = dim3(TilesT::kThreads),
                     .shared_bytes = TilesT::kElements * sizeof(T)},
                    stream, Heads<T>(op.q_BSHD, "q"), Heads<T>(op.k_BSGD, "k"), Heads<T>(op.v_BSGD, "v"),
                    Heads<T>(op.out_BSHD, "out"), Whole<float>(op.lse_BHS, "lse"), static_cast<int>(H),
                    static_cast<int>(H / G), static_cast<int>(query_tiles), Mask(op), op.scale, op.cap);
    });
  });
}

}  // namespace shale::cuda
