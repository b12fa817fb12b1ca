// Attention, backward: delta, and the kernels for ops that neither cuDNN nor the tensor cores take
// (attention_matrices.h), such as those in fp32. attention_tiles.h has their parts.
//
// There are three kernels (Dao, 2023, without its atomics). Each output has one owner, so runs agree to the bit:
//   delta = rowsum(d_out * out)   a warp per row; the result goes to scratch
//   d_q                           a block owns kRows queries of a head and loops over their keys
//   d_k, d_v                      a block owns kRows keys of a group, loops over the heads of the group in order, and
//                                 for each head over the queries that see these keys
// Each of the last two computes the scores once. They compute in fp32 on ordinary cores, and arithmetic bounds them.
#include "kernels/check.h"
#include "kernels/cuda/attention_matrices.h"
#include "kernels/cuda/attention_tiles.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/portable.h"
#include "kernels/integers.h"
#include "kernels/ops/attention.h"

namespace shale::cuda {
namespace {

// Two tiles of rows, two of columns and two of weights, sized for 99 KiB of shared memory, the least that a supported
// GPU offers a block.
template <int kWidth>
struct BackwardTiles : Tiles<kWidth, kWidth <= 128 ? 2 : 1, kWidth <= 128 ? 4 : 1> {
  using Base = Tiles<kWidth, kWidth <= 128 ? 2 : 1, kWidth <= 128 ? 4 : 1>;
  // Offsets in shared memory, in floats. For d_q, rows are q and d_out and columns are k and v; for d_k and d_v, rows
  // are k and v and columns are q and d_out.
  static constexpr int kRowA = 0, kRowB = kRowA + Base::kRowTile, kColumnA = kRowB + Base::kRowTile,
                       kColumnB = kColumnA + Base::kColumnTile, kP = kColumnB + Base::kColumnTile,
                       kDs = kP + Base::kWeightTile, kFloats = kDs + Base::kWeightTile;
};

constexpr int kDeltaRowsPerBlock = 4;  // One warp each.
constexpr int kDeltaThreads = kDeltaRowsPerBlock * kWarpThreads;

// Given the dot products q k and d_out v of one query and key, Probability returns p, and ScoreGradient returns ds /
// scale.
SHALE_DEVICE float Probability(float q_k, float scale, float lse) { return expf(q_k * scale - lse); }
SHALE_DEVICE float ScoreGradient(float p, float d_out_v, float delta) { return p * (d_out_v - delta); }

// Loads the pack of a row that begins at element d, with zeros past the end of the row. Sums have the same bits whether
// the pack is loaded in one access or element by element.
template <class T>
SHALE_DEVICE Floats<kPackOf<T>> LoadPiece(const Heads<T>& from, int64_t row, int d) {
  if (from.packs) return LoadFloats<kPackOf<T>>(from.at, row + d);
  Floats<kPackOf<T>> floats = {};
  for (int k = 0; k < kPackOf<T>; ++k) {
    if (d + k < from.width) floats.at[k] = Widen(from.at.Load(row + d + k));
  }
  return floats;
}

// Computes delta. Rows are numbered in the order of delta: b, h, s.
template <class T>
SHALE_KERNEL SHALE_BOUNDS(kDeltaThreads)
    AttentionDeltaKernel(Heads<T> d_out, Heads<T> out, Global<float> delta_BHS, int64_t rows, int heads) {
  const int64_t row = static_cast<int64_t>(blockIdx.x) * kDeltaRowsPerBlock + threadIdx.y;
  if (row >= rows) return;
  const int s = static_cast<int>(row % out.length), head = static_cast<int>(row / out.length);
  const int b = head / heads, h = head % heads;
  const int64_t d_out_row = d_out.Begin(b, s, h), out_row = out.Begin(b, s, h);
  float sum = 0;
  for (int d = threadIdx.x * kPackOf<T>; d < out.width; d += kWarpThreads * kPackOf<T>) {
    const Floats<kPackOf<T>> x = LoadPiece(d_out, d_out_row, d), y = LoadPiece(out, out_row, d);
    for (int k = 0; k < kPackOf<T>; ++k) sum = fmaf(x.at[k], y.at[k], sum);
  }
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
  if (threadIdx.x == 0) delta_BHS.Store(row, sum);
}

template <class TilesT, class T>
SHALE_KERNEL SHALE_BOUNDS(TilesT::kThreads, 2)
    AttentionQueryGradientKernel(AttentionInputs<T> in, Heads<T> d_q, int query_tiles) {
  constexpr int kR = TilesT::kRowsPerThread, kC = TilesT::kColumnsPerThread;
  SHALE_DYNAMIC_SHARED(float, shared);
  const int length = in.k.length;
  const int first_query = (query_tiles - 1 - static_cast<int>(blockIdx.x % query_tiles)) * TilesT::kRows;
  const int head = blockIdx.x / query_tiles, b = head / in.heads, h = head % in.heads, g = h / in.heads_per_group;
  const int end_of_keys = in.mask.EndOfKeys(first_query + TilesT::kRows - 1);

  typename TilesT::Result result = {};
  const float left_scale = in.LeftScale();
  float lse[kR], delta[kR], factor[kR];
  SHALE_UNROLL for (int i = 0; i < kR; ++i) {
    const int query = first_query + threadIdx.y + TilesT::kThreadsY * i;
    const int64_t at = static_cast<int64_t>(head) * length + query;
    lse[i] = query < length ? in.lse_BHS.Load(at) : 0.0f;
    delta[i] = query < length ? in.delta_BHS.Load(at) : 0.0f;
    factor[i] = in.scale;
  }
  LoadTile<TilesT, TilesT::kRows>(in.q, b, h, first_query, shared, TilesT::kRowA);
  LoadTile<TilesT, TilesT::kRows>(in.d_out, b, h, first_query, shared, TilesT::kRowB);
  for (int first_key = in.mask.FirstKey(b, first_query); first_key < end_of_keys; first_key += TilesT::kColumns) {
    LoadTile<TilesT, TilesT::kColumns>(in.k, b, g, first_key, shared, TilesT::kColumnA);
    LoadTile<TilesT, TilesT::kColumns>(in.v, b, g, first_key, shared, TilesT::kColumnB);
    __syncthreads();
    typename TilesT::Scores q_k, d_out_v;
    Multiply<TilesT>(shared, TilesT::kRowA, TilesT::kColumnA, in.q.width, q_k);
    Multiply<TilesT>(shared, TilesT::kRowB, TilesT::kColumnB, in.q.width, d_out_v);
    SHALE_UNROLL for (int i = 0; i < kR; ++i) {
      const int query = first_query + threadIdx.y + TilesT::kThreadsY * i, first = in.mask.FirstKey(b, query);
      if (in.cap > 0) {
        SHALE_UNROLL for (int j = 0; j < kC; ++j) in.Cap(delta[i], q_k[i][j], d_out_v[i][j]);
      }
      SHALE_UNROLL for (int j = 0; j < kC; ++j) {
        const bool seen = in.mask.Sees(query, first_key + threadIdx.x + TilesT::kThreadsX * j, first);
        const float ds = ScoreGradient(Probability(q_k[i][j], left_scale, lse[i]), d_out_v[i][j], delta[i]);
        StoreWeight<TilesT>(shared, TilesT::kDs, i, j, seen ? ds : 0.0f);
      }
    }
    __syncwarp();  // Only the warp that stored a row's weights reads them.
    AddWeighted<TilesT>(shared, TilesT::kDs, TilesT::kColumnA, result);
    __syncthreads();
  }
  StoreResult<TilesT>(d_q, b, h, first_query, result, factor);
}

template <class TilesT, class T>
SHALE_KERNEL SHALE_BOUNDS(TilesT::kThreads, 1)
    AttentionKeyGradientKernel(AttentionInputs<T> in, Heads<T> d_k, Heads<T> d_v, int key_tiles) {
  constexpr int kR = TilesT::kRowsPerThread, kC = TilesT::kColumnsPerThread;
  SHALE_DYNAMIC_SHARED(float, shared);
  const int length = in.k.length, groups = in.heads / in.heads_per_group;
  const int first_key = static_cast<int>(blockIdx.x % key_tiles) * TilesT::kRows;
  const int group = blockIdx.x / key_tiles, b = group / groups, g = group % groups;
  const int end_of_queries = in.mask.EndOfQueries(first_key + TilesT::kRows - 1);

  const float left_scale = in.LeftScale();
  typename TilesT::Result k_result = {}, v_result = {};
  LoadTile<TilesT, TilesT::kRows>(in.k, b, g, first_key, shared, TilesT::kRowA);
  LoadTile<TilesT, TilesT::kRows>(in.v, b, g, first_key, shared, TilesT::kRowB);
  for (int h = g * in.heads_per_group; h < (g + 1) * in.heads_per_group; ++h) {
    for (int first_query = in.mask.FirstQuery(first_key); first_query < end_of_queries;
         first_query += TilesT::kColumns) {
      // All threads leave the loop together at the queries of later documents.
      if (in.mask.FirstKey(b, first_query) >= first_key + TilesT::kRows) break;
      LoadTile<TilesT, TilesT::kColumns>(in.q, b, h, first_query, shared, TilesT::kColumnA);
      LoadTile<TilesT, TilesT::kColumns>(in.d_out, b, h, first_query, shared, TilesT::kColumnB);
      __syncthreads();
      typename TilesT::Scores k_q, v_d_out;
      Multiply<TilesT>(shared, TilesT::kRowA, TilesT::kColumnA, in.q.width, k_q);
      Multiply<TilesT>(shared, TilesT::kRowB, TilesT::kColumnB, in.q.width, v_d_out);
      SHALE_UNROLL for (int j = 0; j < kC; ++j) {
        const int query = first_query + threadIdx.x + TilesT::kThreadsX * j;
        const int64_t at = (static_cast<int64_t>(b) * in.heads + h) * length + query;
        const float lse = query < length ? in.lse_BHS.Load(at) : 0.0f;
        const float delta = query < length ? in.delta_BHS.Load(at) : 0.0f;
        const int first = in.mask.FirstKey(b, query);
        if (in.cap > 0) {
          SHALE_UNROLL for (int i = 0; i < kR; ++i) in.Cap(delta, k_q[i][j], v_d_out[i][j]);
        }
        SHALE_UNROLL for (int i = 0; i < kR; ++i) {
          const int key = first_key + threadIdx.y + TilesT::kThreadsY * i;
          const bool seen = query < length && in.mask.Sees(query, key, first);
          const float p = Probability(k_q[i][j], left_scale, lse);
          StoreWeight<TilesT>(shared, TilesT::kP, i, j, seen ? p : 0.0f);
          StoreWeight<TilesT>(shared, TilesT::kDs, i, j, seen ? ScoreGradient(p, v_d_out[i][j], delta) : 0.0f);
        }
      }
      __syncwarp();  // Only the warp that stored a row's weights reads them.
      AddWeighted<TilesT>(shared, TilesT::kP, TilesT::kColumnB, v_result);
      AddWeighted<TilesT>(shared, TilesT::kDs, TilesT::kColumnA, k_result);
      __syncthreads();
    }
  }
  float one[kR], scale[kR];
  SHALE_UNROLL for (int i = 0; i < kR; ++i) {
    one[i] = 1;
    scale[i] = in.scale;
  }
  StoreResult<TilesT>(d_v, b, g, first_key, v_result, one);
  StoreResult<TilesT>(d_k, b, g, first_key, k_result, scale);
}

template <class TilesT, class T>
absl::Status Start(const AttentionBackward& op, const Global<float>& delta, StreamHandle stream) {
  const int64_t B = op.q_BSHD.dim(0), S = op.q_BSHD.dim(1), H = op.q_BSHD.dim(2), G = op.k_BSGD.dim(2);
  const int64_t tiles = CeilDivide(S, TilesT::kRows);
  const AttentionInputs<T> in(op, delta);
  const auto shape = [&](int64_t blocks) -> LaunchShape {
    return {.grid = dim3(static_cast<unsigned>(blocks)),
            .block = dim3(TilesT::kThreadsX, TilesT::kThreadsY),
            .shared_bytes = TilesT::kFloats * sizeof(float)};
  };
  SHALE_RETURN_IF_ERROR(Launch("AttentionBackward d_q", AttentionQueryGradientKernel<TilesT, T>, shape(B * H * tiles),
                               stream, in, Heads<T>(op.d_q_BSHD, "d_q"), static_cast<int>(tiles)));
  return Launch("AttentionBackward d_k d_v", AttentionKeyGradientKernel<TilesT, T>, shape(B * G * tiles), stream, in,
                Heads<T>(op.d_k_BSGD, "d_k"), Heads<T>(op.d_v_BSGD, "d_v"), static_cast<int>(tiles));
}

}  // namespace

// Scratch holds delta.
absl::Status Run(const AttentionBackward& op, Scratch scratch, StreamHandle stream) {
  const int64_t H = op.q_BSHD.dim(2), rows = op.q_BSHD.dim(0) * H * op.q_BSHD.dim(1);
  const Global<float> delta(reinterpret_cast<float*>(scratch.data), rows, "delta");
  SHALE_RETURN_IF_ERROR(WithElement(op.q_BSHD.dtype, [&](auto element) {
    using T = decltype(element);
    return Launch("AttentionBackward delta", AttentionDeltaKernel<T>,
                  {.grid = dim3(static_cast<unsigned>(CeilDivide(rows, kDeltaRowsPerBlock))),
                   .block = dim3(kWarpThreads, kDeltaRowsPerBlock)},
                  stream, Heads<T>(op.d_out_BSHD, "d_out"), Heads<T>(op.out_BSHD, "out"), delta, rows,
                  static_cast<int>(H));
  }));
  if (TakesMatrices({&op.q_BSHD, &op.k_BSGD, &op.v_BSGD, &op.d_out_BSHD, &op.d_q_BSHD, &op.d_k_BSGD, &op.d_v_BSGD})) {
    return RunOnMatrices(op, delta, stream);
  }
  return WithTiles<BackwardTiles>("AttentionBackward", op.q_BSHD.dim(3), [&](auto tiles) {
    using TilesT = decltype(tiles);
    return WithElement(op.q_BSHD.dtype,
                       [&](auto element) { return Start<TilesT, decltype(element)>(op, delta, stream); });
  });
}

}  // namespace shale::cuda
