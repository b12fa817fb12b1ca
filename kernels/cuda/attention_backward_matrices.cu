// Attention on tensor cores, backward: d_q, and d_k and d_v (see attention_matrices.h for their parts).
//
// Each output has one owner, so runs agree to the bit, and there is no S x S workspace: d_q has a kernel of its own,
// and scores are computed twice (7 matmuls instead of 5).
//   d_q         a block owns kRows queries of a head and loops over their keys
//   d_k, d_v    a block owns kRows keys of a group, loops over the heads of the group in order, and for each head over
//               the queries that see these keys. Its warps compute the transposed scores, of 16 keys each
// A warp's registers hold only one result if heads have more than 128 elements. These have a kernel for d_k and one for
// d_v, which compute the scores a third time (8 matmuls).
// Probabilities and their gradients are rounded to the dtype of the operands before they are multiplied.
#include <algorithm>
#include <cstddef>

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
  // Offsets in shared memory, in elements. If warps keep q and d_out in registers, keys then take the place of these.
  static constexpr int kQ = 0, kDOut = Base::kRowTile, kV = 2 * Base::kRowTile,
                       kK = Base::kRowsInRegisters ? 0 : kV + Base::kColumnTile,
                       kElements = std::max(kK, kV) + Base::kColumnTile;
  static_assert(2 * kElements <= kLeastSharedBytes);
};

// The tiles of the kernel of d_k and d_v.
template <int kWidth>
struct KeyGradientTiles : MatrixTiles<kWidth, 4, kWidth <= 64 ? 64 : 32> {
  using Base = MatrixTiles<kWidth, 4, kWidth <= 64 ? 64 : 32>;
  // There are two pairs of tiles of q and d_out, kPair apart.
  static constexpr int kK = 0, kV = kK + Base::kRowTile, kQ = kV + Base::kRowTile, kDOut = kQ + Base::kColumnTile,
                       kPair = 2 * Base::kColumnTile, kElements = kQ + 2 * kPair;
  static_assert(2 * kElements <= kLeastSharedBytes);
};

// Those of the two kernels for wide heads. The kernel of d_v has no tile of v.
template <>
struct KeyGradientTiles<256> : MatrixTiles<256, 4, 32> {
  static constexpr int kK = 0, kQ = kK + kRowTile, kDOut = kQ + kColumnTile, kV = kDOut + kColumnTile,
                       kElementsOfDV = kV, kElements = kV + kRowTile;
  static_assert(2 * kElements <= kLeastSharedBytes);
};

enum class Gradient { kDK, kDV };

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

// Store and load the facts of a query in the 16 bytes between its row of a tile and the next row. Each thread stores
// those of the row that has its number, if there is one.
template <class TilesT, class T>
SHALE_DEVICE void StoreFacts(const QueryFacts& facts, const Shared<T>& shared, int tile) {
  if (threadIdx.x >= TilesT::kColumns) return;
  shared.StoreWords(
      tile + static_cast<int>(threadIdx.x) * TilesT::kStride + TilesT::kWidth,
      {__float_as_uint(facts.log2_sum), __float_as_uint(facts.delta), static_cast<unsigned>(facts.seen_from), 0});
}
template <class TilesT, class T>
SHALE_DEVICE QueryFacts LoadFacts(const Shared<T>& shared, int tile, int row) {
  const Words words = shared.LoadWords(tile + row * TilesT::kStride + TilesT::kWidth);
  return {.log2_sum = __uint_as_float(words.at[0]),
          .delta = __uint_as_float(words.at[1]),
          .seen_from = static_cast<int>(words.at[2])};
}

// Turns the dot products q k and d_out v of a query and a key, after AttentionInputs::Cap if there is a cap, into p and
// ds / scale. Callers ask for the cap once for all products: a branch for each keeps the compiler from interleaving
// their arithmetic.
template <class T>
SHALE_DEVICE void TakeGradient(const AttentionInputs<T>& in, const QueryFacts& query, bool sees, float& q_k,
                               float& d_out_v) {
  // Computed also where it is not used, because nvcc branches around an Exp2 under a condition.
  const float p = Exp2(q_k * in.LeftScale() * kLog2E - query.log2_sum), d_score = p * (d_out_v - query.delta);
  d_out_v = sees ? d_score : 0.0f;
  q_k = sees ? p : 0.0f;
}

// Calls Cap and TakeGradient for each of the warp's keys, from position `first_key` on, and each query of a tile, in
// which StoreFacts has stored the facts of the queries.
template <class TilesT, class T>
SHALE_DEVICE void TakeGradients(const AttentionInputs<T>& in, const Shared<T>& shared, int tile, int first_key,
                                int first_query, typename TilesT::Scores& k_q, typename TilesT::Scores& v_d_out) {
  if (in.cap > 0) {
    SHALE_UNROLL for (int j = 0; j < TilesT::kColumns / 8; ++j) {
      SHALE_UNROLL for (int e = 0; e < 4; ++e) {
        const QueryFacts facts = LoadFacts<TilesT>(shared, tile, 8 * j + LaneColumn(e));
        in.Cap(facts.delta, k_q[j][e], v_d_out[j][e]);
      }
    }
  }
  SHALE_UNROLL for (int j = 0; j < TilesT::kColumns / 8; ++j) {
    SHALE_UNROLL for (int f = 0; f < 2; ++f) {
      const int column = 8 * j + LaneColumn(f), query = first_query + column;
      const QueryFacts facts = LoadFacts<TilesT>(shared, tile, column);
      SHALE_UNROLL for (int i = 0; i < 2; ++i) {
        const bool sees = query < in.k.length && in.mask.Sees(query, first_key + LaneRow(i), facts.seen_from);
        TakeGradient(in, facts, sees, k_q[j][2 * i + f], v_d_out[j][2 * i + f]);
      }
    }
  }
}

template <class TilesT, class T>
SHALE_KERNEL SHALE_BOUNDS(TilesT::kThreads, 2)
    AttentionQueryGradientMatrixKernel(AttentionInputs<T> in, Heads<T> d_q, int query_tiles) {
  SHALE_DYNAMIC_SHARED(T, shared);
  const int first_query = (query_tiles - 1 - static_cast<int>(blockIdx.x % query_tiles)) * TilesT::kRows;
  const int head = blockIdx.x / query_tiles, b = head / in.heads, h = head % in.heads, g = h / in.heads_per_group;
  const int end_of_keys = in.mask.EndOfKeys(first_query + TilesT::kRows - 1);
  const int warp_row = static_cast<int>(threadIdx.x) / kWarpThreads * 16;

  int first_key = in.mask.FirstKey(b, first_query);
  BeginCopyOfRows<TilesT, TilesT::kRows>(in.q, b, h, first_query, shared, TilesT::kQ);
  BeginCopyOfRows<TilesT, TilesT::kRows>(in.d_out, b, h, first_query, shared, TilesT::kDOut);
  BeginCopyOfRows<TilesT, TilesT::kColumns>(in.v, b, g, first_key, shared, TilesT::kV);
  int query[2];
  QueryFacts facts[2];
  SHALE_UNROLL for (int i = 0; i < 2; ++i) {
    query[i] = first_query + warp_row + LaneRow(i);
    facts[i] = FactsOf(in, b, head, query[i]);
  }
  typename TilesT::Left q, d_out;
  if constexpr (TilesT::kRowsInRegisters) {
    WaitForCopies();
    __syncthreads();
    // The next barrier, in the loop, comes before keys take the place of q and d_out.
    LoadRows<TilesT>(shared, TilesT::kQ, warp_row, q);
    LoadRows<TilesT>(shared, TilesT::kDOut, warp_row, d_out);
  }
  const auto left = [&](const typename TilesT::Left& rows, int tile) {
    return [&, tile](int step, unsigned(&a)[4]) { GiveLeft<TilesT>(rows, shared, tile, warp_row, step, a); };
  };

  typename TilesT::Result result = {};
  for (; first_key < end_of_keys; first_key += TilesT::kColumns) {
    WaitForCopies();
    __syncthreads();  // The values are here, and nobody reads the keys before them any more.
    BeginCopyOfRows<TilesT, TilesT::kColumns>(in.k, b, g, first_key, shared, TilesT::kK);
    typename TilesT::Scores q_k, d_out_v;
    MultiplyRows<TilesT>(left(d_out, TilesT::kDOut), shared, TilesT::kV, d_out_v);
    WaitForCopies();
    __syncthreads();  // The keys are here, and nobody reads the values any more.
    if (const int next = first_key + TilesT::kColumns; next < end_of_keys) {
      BeginCopyOfRows<TilesT, TilesT::kColumns>(in.v, b, g, next, shared, TilesT::kV);
    }
    MultiplyRows<TilesT>(left(q, TilesT::kQ), shared, TilesT::kK, q_k);
    if (in.cap > 0) {
      SHALE_UNROLL for (int j = 0; j < TilesT::kColumns / 8; ++j) {
        SHALE_UNROLL for (int e = 0; e < 4; ++e) in.Cap(facts[e / 2].delta, q_k[j][e], d_out_v[j][e]);
      }
    }
    SHALE_UNROLL for (int j = 0; j < TilesT::kColumns / 8; ++j) {
      SHALE_UNROLL for (int e = 0; e < 4; ++e) {
        const bool sees = in.mask.Sees(query[e / 2], first_key + 8 * j + LaneColumn(e), facts[e / 2].seen_from);
        TakeGradient(in, facts[e / 2], sees, q_k[j][e], d_out_v[j][e]);
      }
    }
    AddWeightedRows<TilesT>(d_out_v, shared, TilesT::kK, result);
  }
  const float factor[2] = {in.scale, in.scale};
  StoreRows<TilesT>(d_q, b, h, first_query + warp_row, result, factor);
}

// The tiles of queries that a block of keys goes through: those that see its keys, head by head of its group.
template <class TilesT, class T>
class QueryTiles {
 public:
  // A tile of the queries of head h, from position `query` on.
  struct Tile {
    int h, query;
  };

  SHALE_DEVICE QueryTiles(const AttentionInputs<T>& in, int b, int g, int first_key)
      : in_(in),
        b_(b),
        first_key_(first_key),
        end_of_queries_(in.mask.EndOfQueries(first_key + TilesT::kRows - 1)),
        first_head_(g * in.heads_per_group) {}

  SHALE_DEVICE Tile First() const { return {first_head_, in_.mask.FirstQuery(first_key_)}; }
  SHALE_DEVICE Tile Next(const Tile& tile) const {
    const int query = tile.query + TilesT::kColumns;
    // The queries of later documents see none of the keys.
    if (query < end_of_queries_ && in_.mask.FirstKey(b_, query) < first_key_ + TilesT::kRows) return {tile.h, query};
    return {tile.h + 1, in_.mask.FirstQuery(first_key_)};
  }
  SHALE_DEVICE bool Has(const Tile& tile) const { return tile.h < first_head_ + in_.heads_per_group; }

  SHALE_DEVICE void BeginCopy(const Heads<T>& from, const Tile& tile, const Shared<T>& shared, int to) const {
    BeginCopyOfRows<TilesT, TilesT::kColumns>(from, b_, tile.h, tile.query, shared, to);
  }
  // Returns the facts of the query whose row of the tile has the number of the calling thread, if there is one.
  SHALE_DEVICE QueryFacts Facts(const Tile& tile) const {
    if (threadIdx.x >= TilesT::kColumns) return {};
    return FactsOf(in_, b_, b_ * in_.heads + tile.h, tile.query + static_cast<int>(threadIdx.x));
  }

 private:
  const AttentionInputs<T>& in_;
  int b_, first_key_, end_of_queries_, first_head_;
};

// The warps copy the next queries while they multiply these.
template <class TilesT, class T>
SHALE_KERNEL SHALE_BOUNDS(TilesT::kThreads, TilesT::kWidth <= 64 ? 2 : 1)
    AttentionKeyGradientMatrixKernel(AttentionInputs<T> in, Heads<T> d_k, Heads<T> d_v, int key_tiles) {
  SHALE_DYNAMIC_SHARED(T, shared);
  const int groups = in.heads / in.heads_per_group;
  const int first_key = static_cast<int>(blockIdx.x % key_tiles) * TilesT::kRows;
  const int group = blockIdx.x / key_tiles, b = group / groups, g = group % groups;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarpThreads * 16;
  const auto left = [&](int tile) {
    return [&, tile](int step, unsigned(&a)[4]) { LoadLeft<TilesT>(shared, tile, warp_row, step, a); };
  };

  typename TilesT::Result k_result = {}, v_result = {};
  const QueryTiles<TilesT, T> tiles(in, b, g, first_key);
  auto tile = tiles.First();
  BeginCopyOfRows<TilesT, TilesT::kRows>(in.k, b, g, first_key, shared, TilesT::kK);
  BeginCopyOfRows<TilesT, TilesT::kRows>(in.v, b, g, first_key, shared, TilesT::kV);
  tiles.BeginCopy(in.q, tile, shared, TilesT::kQ);
  tiles.BeginCopy(in.d_out, tile, shared, TilesT::kDOut);
  StoreFacts<TilesT>(tiles.Facts(tile), shared, TilesT::kQ);
  for (int pair = 0; tiles.Has(tile); pair = TilesT::kPair - pair) {
    WaitForCopies();
    __syncthreads();  // The queries are here, and nobody reads those before them any more.
    const auto next = tiles.Next(tile);
    const int next_q = TilesT::kQ + TilesT::kPair - pair;
    const bool has_next = tiles.Has(next);
    QueryFacts facts = {};
    if (has_next) {
      tiles.BeginCopy(in.q, next, shared, next_q);
      tiles.BeginCopy(in.d_out, next, shared, next_q + TilesT::kColumnTile);
      facts = tiles.Facts(next);
    }
    const int q = TilesT::kQ + pair, d_out = TilesT::kDOut + pair;
    typename TilesT::Scores k_q, v_d_out;
    MultiplyRows<TilesT>(left(TilesT::kK), shared, q, k_q);
    MultiplyRows<TilesT>(left(TilesT::kV), shared, d_out, v_d_out);
    TakeGradients<TilesT>(in, shared, q, first_key + warp_row, tile.query, k_q, v_d_out);
    AddWeightedRows<TilesT>(k_q, shared, d_out, v_result);
    AddWeightedRows<TilesT>(v_d_out, shared, q, k_result);
    if (has_next) StoreFacts<TilesT>(facts, shared, next_q);
    tile = next;
  }
  const float one[2] = {1, 1}, scale[2] = {in.scale, in.scale};
  StoreRows<TilesT>(d_v, b, g, first_key + warp_row, v_result, one);
  StoreRows<TilesT>(d_k, b, g, first_key + warp_row, k_result, scale);
}

// Computes one of the gradients of wide heads. It multiplies d_out first and q second for d_k, and q first and d_out
// second for d_v. The tile of the second operand has the facts of the queries.
template <class TilesT, class T, Gradient kGradient>
SHALE_KERNEL SHALE_BOUNDS(TilesT::kThreads, 2)
    AttentionWideKeyGradientKernel(AttentionInputs<T> in, Heads<T> d_keys, int key_tiles) {
  constexpr bool kDV = kGradient == Gradient::kDV;
  constexpr int kFirst = kDV ? TilesT::kQ : TilesT::kDOut, kSecond = kDV ? TilesT::kDOut : TilesT::kQ;
  SHALE_DYNAMIC_SHARED(T, shared);
  const int groups = in.heads / in.heads_per_group;
  const int first_key = static_cast<int>(blockIdx.x % key_tiles) * TilesT::kRows;
  const int group = blockIdx.x / key_tiles, b = group / groups, g = group % groups;
  const int warp_row = static_cast<int>(threadIdx.x) / kWarpThreads * 16;
  const auto left = [&](int tile) {
    return [&, tile](int step, unsigned(&a)[4]) { LoadLeft<TilesT>(shared, tile, warp_row, step, a); };
  };
  const Heads<T>&first = kDV ? in.q : in.d_out, &second = kDV ? in.d_out : in.q;

  typename TilesT::Result result = {};
  const QueryTiles<TilesT, T> tiles(in, b, g, first_key);
  auto tile = tiles.First();
  BeginCopyOfRows<TilesT, TilesT::kRows>(in.k, b, g, first_key, shared, TilesT::kK);
  if constexpr (!kDV) BeginCopyOfRows<TilesT, TilesT::kRows>(in.v, b, g, first_key, shared, TilesT::kV);
  tiles.BeginCopy(first, tile, shared, kFirst);
  while (tiles.Has(tile)) {
    WaitForCopies();
    __syncthreads();  // The first operand is here, and nobody reads the second one of the tile before any more.
    tiles.BeginCopy(second, tile, shared, kSecond);
    const QueryFacts facts = tiles.Facts(tile);
    typename TilesT::Scores k_q, v_d_out = {};
    if constexpr (kDV) {
      MultiplyRows<TilesT>(left(TilesT::kK), shared, TilesT::kQ, k_q);
    } else {
      MultiplyRows<TilesT>(left(TilesT::kV), shared, TilesT::kDOut, v_d_out);
    }
    StoreFacts<TilesT>(facts, shared, kSecond);
    WaitForCopies();
    __syncthreads();  // The second operand is here, and nobody reads the first one any more.
    const auto next = tiles.Next(tile);
    if (tiles.Has(next)) tiles.BeginCopy(first, next, shared, kFirst);
    if constexpr (!kDV) MultiplyRows<TilesT>(left(TilesT::kK), shared, TilesT::kQ, k_q);
    TakeGradients<TilesT>(in, shared, kSecond, first_key + warp_row, tile.query, k_q, v_d_out);
    AddWeightedRows<TilesT>(kDV ? k_q : v_d_out, shared, kSecond, result);
    tile = next;
  }
  const float factor = kDV ? 1.0f : in.scale, factors[2] = {factor, factor};
  StoreRows<TilesT>(d_keys, b, g, first_key + warp_row, result, factors);
}

template <class TilesT>
LaunchShape ShapeOf(int64_t heads, int64_t length, int elements) {
  return {.grid = dim3(static_cast<unsigned>(heads * CeilDivide(length, TilesT::kRows))),
          .block = dim3(TilesT::kThreads),
          .shared_bytes = 2 * static_cast<size_t>(elements)};
}

// Starts the kernel of d_k and d_v, or those of each for wide heads.
template <class T>
absl::Status StartOfKeys(const AttentionBackward& op, const AttentionInputs<T>& in, StreamHandle stream) {
  const int64_t S = op.q_BSHD.dim(1), groups = op.k_BSGD.dim(0) * op.k_BSGD.dim(2);
  const Heads<T> d_k(op.d_k_BSGD, "d_k"), d_v(op.d_v_BSGD, "d_v");
  return WithMatrixTiles<KeyGradientTiles>(op.q_BSHD.dim(3), [&](auto tiles) {
    using TilesT = decltype(tiles);
    const int key_tiles = static_cast<int>(CeilDivide(S, TilesT::kRows));
    const LaunchShape shape = ShapeOf<TilesT>(groups, S, TilesT::kElements);
    if constexpr (TilesT::kWidth > 128) {
      SHALE_RETURN_IF_ERROR(Launch("AttentionBackward d_k", AttentionWideKeyGradientKernel<TilesT, T, Gradient::kDK>,
                                   shape, stream, in, d_k, key_tiles));
      return Launch("AttentionBackward d_v", AttentionWideKeyGradientKernel<TilesT, T, Gradient::kDV>,
                    ShapeOf<TilesT>(groups, S, TilesT::kElementsOfDV), stream, in, d_v, key_tiles);
    } else {
      return Launch("AttentionBackward d_k d_v", AttentionKeyGradientMatrixKernel<TilesT, T>, shape, stream, in, d_k,
                    d_v, key_tiles);
    }
  });
}

template <class T>
absl::Status StartMatrices(const AttentionBackward& op, const Global<float>& delta_BHS, StreamHandle stream) {
  const int64_t B = op.q_BSHD.dim(0), S = op.q_BSHD.dim(1), H = op.q_BSHD.dim(2);
  const AttentionInputs<T> in(op, delta_BHS);
  SHALE_RETURN_IF_ERROR(WithMatrixTiles<QueryGradientTiles>(op.q_BSHD.dim(3), [&](auto tiles) {
    using TilesT = decltype(tiles);
    return Launch("AttentionBackward d_q", AttentionQueryGradientMatrixKernel<TilesT, T>,
                  ShapeOf<TilesT>(B * H, S, TilesT::kElements), stream, in, Heads<T>(op.d_q_BSHD, "d_q"),
                  static_cast<int>(CeilDivide(S, TilesT::kRows)));
  }));
  return StartOfKeys(op, in, stream);
}

}  // namespace

absl::Status RunOnMatrices(const AttentionBackward& op, const Global<float>& delta_BHS, StreamHandle stream) {
  return WithHalf(op.q_BSHD.dtype,
                  [&](auto element) { return StartMatrices<decltype(element)>(op, delta_BHS, stream); });
}

}  // namespace shale::cuda
