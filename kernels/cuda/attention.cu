// Attention, forward: the kernel for ops that neither cuDNN nor the tensor cores take (attention_matrices.h), such as
// those in fp32. attention_tiles.h has its parts.
//
// A block owns kRows queries of a head and loops over the keys that they see, kColumns at a time. It computes scores,
// the softmax online (Milakov and Gimelshein, 2018; Dao, 2023), and the weighted sum of values in registers. It
// computes in fp32 on ordinary cores, and arithmetic bounds it. Blocks of late queries come first: if the op is causal,
// these see the most keys. A value of v that is not finite also reaches queries of the tile that do not see it, because
// its product with 0 is NaN. That does no harm: the step is not finite in any case.
#include "kernels/cuda/attention_matrices.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/softmax.h"
#include "kernels/integers.h"
#include "kernels/ops/attention.h"

namespace shale::cuda {
namespace {

// The tiles are sized for 99 KiB of shared memory, the least that a supported GPU offers a block.
template <int kWidth>
struct ForwardTiles : Tiles<kWidth, kWidth <= 128 ? 4 : 2, kWidth <= 128 ? 4 : 1> {
  using Base = Tiles<kWidth, kWidth <= 128 ? 4 : 2, kWidth <= 128 ? 4 : 1>;
  // Offsets in shared memory, in floats.
  static constexpr int kQ = 0, kK = kQ + Base::kRowTile, kV = kK + Base::kColumnTile, kWeights = kV + Base::kColumnTile,
                       kFloats = kWeights + Base::kWeightTile;
};

// Adds the scores of the thread's row i in a tile to the softmax of that row so far. score_at(j) gives that of column
// j. Stores the weights of the columns, and scales the row of the result to the largest score.
template <class TilesT, class ScoreAt>
SHALE_DEVICE void TakeRow(int i, const ScoreAt& score_at, const Shared<float>& shared, RunningSoftmax& softmax,
                          typename TilesT::Result& result) {
  constexpr int kC = TilesT::kColumnsPerThread;
  float scores[kC], largest = softmax.largest;
  SHALE_UNROLL for (int j = 0; j < kC; ++j) {
    scores[j] = score_at(j);
    largest = fmaxf(largest, scores[j]);
  }
  for (int lanes = TilesT::kThreadsX / 2; lanes > 0; lanes /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
  }
  const float shift = ShiftOf(largest), correction = expf(softmax.largest - shift);
  softmax.largest = largest;
  softmax.sum *= correction;
  SHALE_UNROLL for (int j = 0; j < kC; ++j) {
    const float p = expf(scores[j] - shift);
    softmax.sum += p;
    StoreWeight<TilesT>(shared, TilesT::kWeights, i, j, p);
  }
  SHALE_UNROLL for (int d = 0; d < 4 * TilesT::kResultPacks; ++d) result[i][d] *= correction;
}

template <class TilesT, class T>
SHALE_KERNEL SHALE_BOUNDS(TilesT::kThreads, 2)
    AttentionForwardKernel(Heads<T> q, Heads<T> k, Heads<T> v, Heads<T> out, Global<float> lse_BHS, int heads,
                           int heads_per_group, int query_tiles, Mask mask, float scale, float cap) {
  constexpr int kR = TilesT::kRowsPerThread, kC = TilesT::kColumnsPerThread;
  SHALE_DYNAMIC_SHARED(float, shared);
  const int first_query = (query_tiles - 1 - static_cast<int>(blockIdx.x % query_tiles)) * TilesT::kRows;
  const int head = blockIdx.x / query_tiles, b = head / heads, h = head % heads, g = h / heads_per_group;
  const int end_of_keys = mask.EndOfKeys(first_query + TilesT::kRows - 1);

  const float left_scale = cap > 0 ? 1.0f : scale;  // Of scores after the cap, which takes the scale in.
  typename TilesT::Result result = {};
  RunningSoftmax softmax[kR];
  LoadTile<TilesT, TilesT::kRows>(q, b, h, first_query, shared, TilesT::kQ);
  for (int first_key = mask.FirstKey(b, first_query); first_key < end_of_keys; first_key += TilesT::kColumns) {
    LoadTile<TilesT, TilesT::kColumns>(k, b, g, first_key, shared, TilesT::kK);
    LoadTile<TilesT, TilesT::kColumns>(v, b, g, first_key, shared, TilesT::kV);
    __syncthreads();
    typename TilesT::Scores scores;
    Multiply<TilesT>(shared, TilesT::kQ, TilesT::kK, q.width, scores);
    if (cap > 0) {
      SHALE_UNROLL for (int i = 0; i < kR; ++i) {
        SHALE_UNROLL for (int j = 0; j < kC; ++j) scores[i][j] = cap * tanhf(scores[i][j] * scale / cap);
      }
    }
    SHALE_UNROLL for (int i = 0; i < kR; ++i) {
      const int query = first_query + threadIdx.y + TilesT::kThreadsY * i, first = mask.FirstKey(b, query);
      const auto score_at = [&](int j) {
        const int key = first_key + threadIdx.x + TilesT::kThreadsX * j;
        return mask.Sees(query, key, first) ? scores[i][j] * left_scale : -kInfinity;
      };
      TakeRow<TilesT>(i, score_at, shared, softmax[i], result);
    }
    __syncwarp();  // Only the warp that stored a row's weights reads them.
    AddWeighted<TilesT>(shared, TilesT::kWeights, TilesT::kV, result);
    __syncthreads();
  }

  float factor[kR];
  SHALE_UNROLL for (int i = 0; i < kR; ++i) {
    float sum = softmax[i].sum;
    for (int lanes = TilesT::kThreadsX / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
    factor[i] = 1.0f / sum;
    const int query = first_query + threadIdx.y + TilesT::kThreadsY * i;
    if (threadIdx.x == 0 && query < q.length) {
      lse_BHS.Store(static_cast<int64_t>(head) * q.length + query, softmax[i].largest + logf(sum));
    }
  }
  StoreResult<TilesT>(out, b, h, first_query, result, factor);
}

}  // namespace

absl::Status Run(const AttentionForward& op, Scratch scratch, StreamHandle stream) {
  if (TakesMatrices({&op.q_BSHD, &op.k_BSGD, &op.v_BSGD, &op.out_BSHD})) return RunOnMatrices(op, stream);
  const int64_t B = op.q_BSHD.dim(0), S = op.q_BSHD.dim(1), H = op.q_BSHD.dim(2), G = op.k_BSGD.dim(2);
  return WithTiles<ForwardTiles>("AttentionForward", op.q_BSHD.dim(3), [&](auto tiles) {
    using TilesT = decltype(tiles);
    const int64_t query_tiles = CeilDivide(S, TilesT::kRows);
    const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(B * H * query_tiles)),
                               .block = dim3(TilesT::kThreadsX, TilesT::kThreadsY),
                               .shared_bytes = TilesT::kFloats * sizeof(float)};
    return WithElement(op.q_BSHD.dtype, [&](auto element) {
      using T = decltype(element);
      return Launch("AttentionForward", AttentionForwardKernel<TilesT, T>, shape, stream, Heads<T>(op.q_BSHD, "q"),
                    Heads<T>(op.k_BSGD, "k"), Heads<T>(op.v_BSGD, "v"), Heads<T>(op.out_BSHD, "out"),
                    Whole<float>(op.lse_BHS, "lse"), static_cast<int>(H), static_cast<int>(H / G),
                    static_cast<int>(query_tiles), Mask(op), op.scale, op.cap);
    });
  });
}

}  // namespace shale::cuda
