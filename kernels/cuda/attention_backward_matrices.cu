// Attention on tensor cores, backward: d_q, and d_k and d_v (see attention_matrices.h for their parts).
//
// Each output has one owner, so runs agree to the bit, and there is no S x S workspace: d_q has a kernel of its own,
// and scores are computed twice (7 matmuls instead of 5).
//   d_q         a block owns kRows queries of a head, in registers, and loops over their keys
//   d_k, d_v    a block owns kRows keys of a group, loops over the heads of the group in order, and for each head over
//               the queries that see these keys. Its warps compute the transposed scores, of 16 keys each
// Probabilities and their gradients are rounded to the dtype of the operands before they are multiplied.
#include "kernels/cuda/attention_matrices.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/softmax.h"
#include "kernels/integers.h"
#include "kernels/ops/attention.h"

namespace shale::cuda {
namespace {

// Fewer columns at a time where rows are long, so that the registers suffice.
template <int kWidth>
struct QueryGradientTiles : MatrixTiles<kWidth, 4, kWidth <= 64 ? 64 : 32> {
  using Base = MatrixTiles<kWidth, 4, kWidth <= 64 ? 64 : 32>;
  // Offsets in shared memory, in elements. q and d_out are in registers before the first keys come.
  static constexpr int kQ = 0, kDOut = Base::kRowTile, kK = 0, kV = Base::kColumnTile;
  static constexpr int kElements = 2 * (Base::kRowTile > Base::kColumnTile ? Base::kRowTile : Base::kColumnTile);
};

template <int kWidth>
struct KeyGradientTiles : MatrixTiles<kWidth, 4, kWidth <= 64 ? 64 : 32> {
  using Base = MatrixTiles<kWidth, 4, kWidth <= 64 ? 64 : 32>;
  static constexpr int kK = 0, kV = kK + Base::kRowTile, kQ = kV + Base::kRowTile, kDOut = kQ + Base::kColumnTile,
                       kElements = kDOut + Base::kColumnTile;
};

// What is known of a query: log2 of the sum that divides its probabilities, delta, and the first key that it sees.
struct QueryFacts {
  float log2_sum, delta;
  int seen_from;
};

template <class T>
SHALE_DEVICE QueryFacts FactsOf(const AttentionInputs<T>& in, int b, int head, int query) {
  const int64_t at = static_cast<int64_t>(head) * in.k.length + query;
  const bool exists = query < in.k.length;
  return {.log2_sum = exists ? in.lse_BHS.Load(at) * kLog2E : 0.0f,
          .delta = exists ? in.delta_BHS.Load(at) : 0.0f,
          .seen_from = in.mask.FirstKey(b, query)};
}

// Turns the dot products q k and d_out v of a query and a key into p and ds / scale.
template <class T>
SHALE_DEVICE void TakeGradient(const AttentionInputs<T>& in, const QueryFacts& query, bool sees, float& q_k,
                               float& d_out_v) {
  float delta = query.delta;
  if (in.cap > 0) in.Cap(delta, q_k, d_out_v);
  const float p = sees ? Exp2(q_k * in.LeftScale() * kLog2E - query.log2_sum) : 0.0f;
  d_out_v = sees ? p * (d_out_v - delta) : 0.0f;
  q_k = p;
}

template <class TilesT, class T>
SHALE_KERNEL SHALE_BOUNDS(TilesT::kThreads, 2)
    AttentionQueryGradientMatrixKernel(AttentionInputs<T> in, Heads<T> d_q, int query_tiles) {
  SHALE_DYNAMIC_SHARED(T, shared);
  const int first_query = (query_tiles - 1 - static_cast<int>(blockIdx.x % query_tiles)) * TilesT::kRows;
  const int head = blockIdx.x / query_tiles, b = head / in.heads, h = head % in.heads, g = h / in.heads_per_group;
  const int end_of_keys = in.mask.EndOfKeys(first_query + TilesT::kRows - 1);
  const int warp_row = static_cast<int>(threadIdx.x) / kWarpThreads * 16;

  typename TilesT::Left q, d_out;
  CopyRows<TilesT, TilesT::kRows>(in.q, b, h, first_query, shared, TilesT::kQ);
  CopyRows<TilesT, TilesT::kRows>(in.d_out, b, h, first_query, shared, TilesT::kDOut);
  __syncthreads();
  SHALE_UNROLL for (int step = 0; step < TilesT::kWidth / 16; ++step) {
    LoadLeft<TilesT>(shared, TilesT::kQ, warp_row, step, q[step]);
    LoadLeft<TilesT>(shared, TilesT::kDOut, warp_row, step, d_out[step]);
  }
  __syncthreads();

  typename TilesT::Result result = {};
  int query[2];
  QueryFacts facts[2];
  SHALE_UNROLL for (int i = 0; i < 2; ++i) {
    query[i] = first_query + warp_row + LaneRow(i);
    facts[i] = FactsOf(in, b, head, query[i]);
  }
  for (int first_key = in.mask.FirstKey(b, first_query); first_key < end_of_keys; first_key += TilesT::kColumns) {
    CopyRows<TilesT, TilesT::kColumns>(in.k, b, g, first_key, shared, TilesT::kK);
    CopyRows<TilesT, TilesT::kColumns>(in.v, b, g, first_key, shared, TilesT::kV);
    __syncthreads();
    typename TilesT::Scores q_k, d_out_v;
    const auto left = [](const typename TilesT::Left& from) {
      return [&from](int step, unsigned(&a)[4]) { SHALE_UNROLL for (int r = 0; r < 4; ++r) a[r] = from[step][r]; };
    };
    MultiplyRows<TilesT>(left(q), shared, TilesT::kK, q_k);
    MultiplyRows<TilesT>(left(d_out), shared, TilesT::kV, d_out_v);
    SHALE_UNROLL for (int j = 0; j < TilesT::kColumns / 8; ++j) {
      SHALE_UNROLL for (int e = 0; e < 4; ++e) {
        const bool sees = in.mask.Sees(query[e / 2], first_key + 8 * j + LaneColumn(e), facts[e / 2].seen_from);
        TakeGradient(in, facts[e / 2], sees, q_k[j][e], d_out_v[j][e]);
      }
    }
    AddWeightedRows<TilesT>(d_out_v, shared, TilesT::kK, result);
    __syncthreads();
  }
  const float factor[2] = {in.scale, in.scale};
  StoreRows<TilesT>(d_q, b, h, first_query + warp_row, result, factor);
}

template <class TilesT, class T>
SHALE_KERNEL SHALE_BOUNDS(TilesT::kThreads, TilesT::kWidth <= 64 ? 2 : 1)
    AttentionKeyGradientMatrixKernel(AttentionInputs<T> in, Heads<T> d_k, Heads<T> d_v, int key_tiles) {
  SHALE_DYNAMIC_SHARED(T, shared);
  SHALE_SHARED_ARRAY(float, log2_sums, TilesT::kColumns);
  SHALE_SHARED_ARRAY(float, deltas, TilesT::kColumns);
  SHALE_SHARED_ARRAY(int, seen_from, TilesT::kColumns);
  const int groups = in.heads / in.heads_per_group;
  const int first_key = static_cast<int>(blockIdx.x % key_tiles) * TilesT::kRows;
  const int group = blockIdx.x / key_tiles, b = group / groups, g = group % groups;
  const int end_of_queries = in.mask.EndOfQueries(first_key + TilesT::kRows - 1);
  const int warp_row = static_cast<int>(threadIdx.x) / kWarpThreads * 16;

  typename TilesT::Result k_result = {}, v_result = {};
  CopyRows<TilesT, TilesT::kRows>(in.k, b, g, first_key, shared, TilesT::kK);
  CopyRows<TilesT, TilesT::kRows>(in.v, b, g, first_key, shared, TilesT::kV);
  const auto left = [&](int tile) {
    return [&, tile](int step, unsigned(&a)[4]) { LoadLeft<TilesT>(shared, tile, warp_row, step, a); };
  };
  for (int h = g * in.heads_per_group; h < (g + 1) * in.heads_per_group; ++h) {
    for (int first_query = in.mask.FirstQuery(first_key); first_query < end_of_queries;
         first_query += TilesT::kColumns) {
      // All threads leave the loop together at the queries of later documents.
      if (in.mask.FirstKey(b, first_query) >= first_key + TilesT::kRows) break;
      CopyRows<TilesT, TilesT::kColumns>(in.q, b, h, first_query, shared, TilesT::kQ);
      CopyRows<TilesT, TilesT::kColumns>(in.d_out, b, h, first_query, shared, TilesT::kDOut);
      if (threadIdx.x < TilesT::kColumns) {
        const int column = static_cast<int>(threadIdx.x);
        const QueryFacts facts = FactsOf(in, b, b * in.heads + h, first_query + column);
        log2_sums.Store(column, facts.log2_sum);
        deltas.Store(column, facts.delta);
        seen_from.Store(column, facts.seen_from);
      }
      __syncthreads();
      typename TilesT::Scores k_q, v_d_out;
      MultiplyRows<TilesT>(left(TilesT::kK), shared, TilesT::kQ, k_q);
      MultiplyRows<TilesT>(left(TilesT::kV), shared, TilesT::kDOut, v_d_out);
      SHALE_UNROLL for (int j = 0; j < TilesT::kColumns / 8; ++j) {
        SHALE_UNROLL for (int f = 0; f < 2; ++f) {
          const int column = 8 * j + LaneColumn(f), query = first_query + column;
          const QueryFacts facts = {
              .log2_sum = log2_sums.Load(column), .delta = deltas.Load(column), .seen_from = seen_from.Load(column)};
          SHALE_UNROLL for (int i = 0; i < 2; ++i) {
            const int key = first_key + warp_row + LaneRow(i);
            const bool sees = query < in.k.length && in.mask.Sees(query, key, facts.seen_from);
            TakeGradient(in, facts, sees, k_q[j][2 * i + f], v_d_out[j][2 * i + f]);
          }
        }
      }
      AddWeightedRows<TilesT>(k_q, shared, TilesT::kDOut, v_result);
      AddWeightedRows<TilesT>(v_d_out, shared, TilesT::kQ, k_result);
      __syncthreads();
    }
  }
  const float one[2] = {1, 1}, scale[2] = {in.scale, in.scale};
  StoreRows<TilesT>(d_v, b, g, first_key + warp_row, v_result, one);
  StoreRows<TilesT>(d_k, b, g, first_key + warp_row, k_result, scale);
}

template <class T>
absl::Status StartMatrices(const AttentionBackward& op, const Global<float>& delta_BHS, StreamHandle stream) {
  const int64_t B = op.q_BSHD.dim(0), S = op.q_BSHD.dim(1), H = op.q_BSHD.dim(2), G = op.k_BSGD.dim(2);
  const AttentionInputs<T> in(op, delta_BHS);
  const auto shape = [&]<class TilesT>(TilesT, int64_t heads) -> LaunchShape {
    return {.grid = dim3(static_cast<unsigned>(heads * CeilDivide(S, TilesT::kRows))),
            .block = dim3(TilesT::kThreads),
            .shared_bytes = TilesT::kElements * sizeof(T)};
  };
  SHALE_RETURN_IF_ERROR(WithMatrixTiles<QueryGradientTiles>(op.q_BSHD.dim(3), [&](auto tiles) {
    using TilesT = decltype(tiles);
    return Launch("AttentionBackward d_q", AttentionQueryGradientMatrixKernel<TilesT, T>, shape(tiles, B * H), stream,
                  in, Heads<T>(op.d_q_BSHD, "d_q"), static_cast<int>(CeilDivide(S, TilesT::kRows)));
  }));
  return WithMatrixTiles<KeyGradientTiles>(op.q_BSHD.dim(3), [&](auto tiles) {
    using TilesT = decltype(tiles);
    return Launch("AttentionBackward d_k d_v", AttentionKeyGradientMatrixKernel<TilesT, T>, shape(tiles, B * G), stream,
                  in, Heads<T>(op.d_k_BSGD, "d_k"), Heads<T>(op.d_v_BSGD, "d_v"),
                  static_cast<int>(CeilDivide(S, TilesT::kRows)));
  });
}

}  // namespace

absl::Status RunOnMatrices(const AttentionBackward& op, const Global<float>& delta_BHS, StreamHandle stream) {
  return WithHalf(op.q_BSHD.dtype,
                  [&](auto element) { return StartMatrices<decltype(element)>(op, delta_BHS, stream); });
}

}  // namespace shale::cuda
