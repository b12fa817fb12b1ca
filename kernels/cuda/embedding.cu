// Embedding, forward and backward.
//
// The forward kernel makes one pass and is bound by memory. A block owns a part of a row of the output, and each thread
// owns packs of 16 bytes of it. A token out of range gives a row of NaNs.
//
// The backward kernels use no atomics. The first kernel sorts positions by (token, position): the place of a position
// is the number of positions that sort before it (T^2 comparisons, 0.3 G at 16,384 tokens). Then a block owns the run
// of one token, in some of the columns, and sums its rows in the order of t, with eight rows in flight. Unless the op
// accumulates, d_weight is zeroed before, for the rows of tokens that do not occur. Writing d_weight bounds the time. A
// token out of range adds to no row of d_weight.
//
// [Note: frequent tokens] A token such as padding may fill half of the positions, and one block that sums all of them
// takes milliseconds. So a run is cut into segments of kEmbeddingSegment places, counted from its beginning. Before the
// runs are summed, a kernel sums all segments but the first ones into partial rows in scratch. The block of the run
// then sums its first segment, and adds the partial rows in their order. So the number of times that a token occurs
// decides the order of its sum, and nothing else does. The partial row of a segment that begins at place p is row p /
// kEmbeddingSegment: two such segments begin at least kEmbeddingSegment places apart, those of one run because of their
// length, and those of two runs because the first segment of the second run lies between them.
#include "kernels/check.h"
#include "kernels/cuda/column_sums.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/integers.h"
#include "kernels/ops/embedding.h"

namespace shale::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kPacks = 2;  // Packs per thread of the forward kernel.
constexpr int kEmbeddingRowsInFlight = 8;
constexpr int kPartialsInFlight = 4;
constexpr int kSortThreads = 256;

SHALE_DEVICE bool InRange(int32_t token, int64_t V) { return token >= 0 && token < V; }

template <class T, bool kAligned>
SHALE_KERNEL SHALE_BOUNDS(kThreads)
    EmbeddingForwardKernel(Global<int32_t> tokens, Global<T> weight, Global<T> positions, Global<int32_t> position_ids,
                           Global<int32_t> begins, Global<T> out, int64_t V, int64_t P, int64_t S, int64_t C,
                           float scale) {
  constexpr int kPack = kPackOf<T>;
  const int64_t t = blockIdx.x, b = Quotient(t, S);
  int64_t s = PositionOf(position_ids, t, t - b * S) + BeginOf(begins, b);
  const int32_t token = tokens.Load(t);
  const bool add = positions.present(), known = InRange(token, V);
  if (s >= P) s = P - 1;  // A position past the table, which the CPU backend refuses, is never used as an address.
  const int64_t end = known ? C : 0;
  const int64_t first = (static_cast<int64_t>(blockIdx.y) * kPacks * kThreads + threadIdx.x) * kPack;
  Pack<T, kPack> w[kPacks], p[kPacks];
  SHALE_UNROLL
  for (int k = 0; k < kPacks; ++k) {
    const int64_t c = first + k * kThreads * kPack;
    w[k] = LoadPack<kAligned>(weight, token * C, c, end);
    if (add) p[k] = LoadPack<kAligned>(positions, s * C, c, end);
  }
  SHALE_UNROLL
  for (int k = 0; k < kPacks; ++k) {
    SHALE_UNROLL
    for (int i = 0; i < kPack; ++i) {
      const float row = Widen(w[k].at[i]), value = add ? fmaf(row, scale, Widen(p[k].at[i])) : row * scale;
      w[k].at[i] = Narrow<T>(known ? value : NAN);
    }
    StorePack<kAligned>(out, t * C, first + k * kThreads * kPack, C, w[k]);
  }
}

// Each thread finds the place of one position, and writes there the place at which the run of its token begins, and the
// position. Tokens out of range sort to the end, as negative ones become large unsigned numbers.
SHALE_KERNEL SHALE_BOUNDS(kSortThreads)
    SortTokensKernel(Global<int32_t> tokens, Global<int32_t> begins, Global<int32_t> order, int64_t T) {
  constexpr int kPack = kPackOf<uint32_t>;
  SHALE_SHARED_ARRAY(uint32_t, tile, kSortThreads);
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kSortThreads + threadIdx.x;
  const uint32_t mine = t < T ? static_cast<uint32_t>(tokens.Load(t)) : 0;
  int32_t smaller = 0, equal_before = 0;
  for (int64_t begin = 0; begin < T; begin += kSortThreads) {
    const int64_t u = begin + threadIdx.x;
    if (begin > 0) __syncthreads();
    // The padding past the last token is the largest number, so it sorts before no token.
    tile.Store(threadIdx.x, u < T ? static_cast<uint32_t>(tokens.Load(u)) : 0xffffffffu);
    __syncthreads();
    for (int i = 0; i < kSortThreads; i += kPack) {
      const Pack<uint32_t, kPack> others = tile.template Load<kPack>(i);
      SHALE_UNROLL
      for (int k = 0; k < kPack; ++k) {
        smaller += others.at[k] < mine ? 1 : 0;
        equal_before += others.at[k] == mine && begin + i + k < t ? 1 : 0;
      }
    }
  }
  if (t >= T) return;
  begins.Store(smaller + equal_before, smaller);
  order.Store(smaller + equal_before, static_cast<int32_t>(t));
}

template <int N>
SHALE_KERNEL SHALE_BOUNDS(kFlatThreads) ZeroKernel(Global<float> x, int64_t n) {
  ForEachFlatPiece<N>(
      n, [&](auto width, int64_t i) { return Floats<decltype(width)::value>{}; },
      [&](auto width, int64_t i, const auto& zeros) { StoreFloats(x, i, zeros); });
}

// Returns the sum of rows row_of(0), row_of(1), ... of x at the pack of columns c, in that order. The first negative
// row_of(k) ends the sum.
template <bool kAligned, class T, class RowOf>
SHALE_DEVICE Floats<kPackOf<T>> SumRows(const Global<T>& x, int64_t c, int64_t C, const RowOf& row_of) {
  constexpr int kPack = kPackOf<T>;
  Floats<kPack> sum = {};
  for (int64_t begin = 0;; begin += kEmbeddingRowsInFlight) {
    Pack<T, kPack> rows[kEmbeddingRowsInFlight];
    bool more = true;
    SHALE_UNROLL
    for (int k = 0; k < kEmbeddingRowsInFlight; ++k) {
      const int64_t row = more ? row_of(begin + k) : -1;
      more = row >= 0;
      // Loads zeros if there is no row; they do not change the sum.
      rows[k] = LoadPack<kAligned>(x, row * C, c, more ? C : 0);
    }
    SHALE_UNROLL
    for (int k = 0; k < kEmbeddingRowsInFlight; ++k) {
      SHALE_UNROLL
      for (int i = 0; i < kPack; ++i) sum.at[i] += Widen(rows[k].at[i]);
    }
    if (!more) return sum;
  }
}

template <bool kAligned, int N>
SHALE_DEVICE void StoreGradient(const Global<float>& to, int64_t row, int64_t c, int64_t C, Floats<N> sum,
                                bool accumulate) {
  if constexpr (kAligned) {
    if (c >= C) return;
    if (accumulate) {
      const Floats<N> before = LoadFloats<N>(to, row * C + c);
      SHALE_UNROLL
      for (int i = 0; i < N; ++i) sum.at[i] += before.at[i];
    }
    StoreFloats(to, row * C + c, sum);
  } else {
    SHALE_UNROLL
    for (int i = 0; i < N; ++i) {
      const int64_t at = row * C + c + i;
      if (c + i < C) to.Store(at, accumulate ? to.Load(at) + sum.at[i] : sum.at[i]);
    }
  }
}

// The positions in the order of their tokens.
struct SortedTokens {
  Global<int32_t> tokens, begins, order;  // By position; by place: where its run begins, and the position.
  int64_t T, V;

  // Returns whether the place belongs to the run that begins at `begin`.
  SHALE_DEVICE bool InRun(int64_t place, int64_t begin) const { return place < T && begins.Load(place) == begin; }
  // Returns the token of the run that begins at `begin`, or -1 if it is out of range.
  SHALE_DEVICE int32_t TokenOf(int64_t begin) const {
    const int32_t token = tokens.Load(order.Load(begin));
    return InRange(token, V) ? token : -1;
  }
};

// Returns the largest number of the warp's threads.
SHALE_DEVICE int32_t MostOfWarp(int32_t x) {
  SHALE_UNROLL
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) {
    const int32_t other = __shfl_xor_sync(kAllLanes, x, lanes);
    x = x < other ? other : x;
  }
  return x;
}

// A block owns kEmbeddingSegment places, and sums the segment that begins at one of them, if one does that is not the
// first of its run.
template <class T, bool kAligned>
SHALE_KERNEL SHALE_BOUNDS(kThreads)
    EmbeddingSegmentsKernel(SortedTokens sorted, Global<T> d_out, Partials partials, int64_t C) {
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kEmbeddingSegment;
  // Each warp looks at all of these places, and then at those of the segment.
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  int32_t found = -1, rows = 0;
  SHALE_UNROLL
  for (int i = lane; i < kEmbeddingSegment; i += kWarpThreads) {
    const int64_t place = first + i, offset = place < sorted.T ? place - sorted.begins.Load(place) : 0;
    if (offset > 0 && offset % kEmbeddingSegment == 0) found = static_cast<int32_t>(place);
  }
  found = MostOfWarp(found);
  if (found < 0) return;
  const int32_t begin = sorted.begins.Load(found);
  if (sorted.TokenOf(begin) < 0) return;
  SHALE_UNROLL
  for (int i = lane; i < kEmbeddingSegment; i += kWarpThreads) {
    if (sorted.InRun(found + i, begin)) rows = i + 1;
  }
  rows = MostOfWarp(rows);
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kPackOf<T>;
  if (c >= C) return;
  const auto sum = SumRows<kAligned>(
      d_out, c, C, [&](int64_t k) -> int64_t { return k < rows ? sorted.order.Load(found + k) : -1; });
  StoreFloats(partials.at, partials.Begin(0, blockIdx.x) + c, sum);
}

// A block owns one place in the sorted positions, and sums the run that begins there, if there is one.
template <class T, bool kAligned>
SHALE_KERNEL SHALE_BOUNDS(kThreads)
    EmbeddingRunsKernel(SortedTokens sorted, Global<T> d_out, Partials partials, Global<float> d_weight, int64_t C,
                        bool accumulate, float scale) {
  constexpr int kPack = kPackOf<T>;
  const int64_t begin = blockIdx.x;
  if (sorted.begins.Load(begin) != begin) return;
  const int32_t token = sorted.TokenOf(begin);
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kPack;
  if (token < 0 || c >= C) return;
  auto sum = SumRows<kAligned>(d_out, c, C, [&](int64_t k) -> int64_t {
    return k < kEmbeddingSegment && sorted.InRun(begin + k, begin) ? sorted.order.Load(begin + k) : -1;
  });
  for (int64_t place = begin + kEmbeddingSegment; sorted.InRun(place, begin);
       place += kPartialsInFlight * kEmbeddingSegment) {
    Floats<kPack> rows[kPartialsInFlight] = {};
    SHALE_UNROLL
    for (int k = 0; k < kPartialsInFlight; ++k) {
      const int64_t at = place + k * kEmbeddingSegment, row = at / kEmbeddingSegment;
      if (sorted.InRun(at, begin)) rows[k] = LoadFloats<kPack>(partials.at, partials.Begin(0, row) + c);
    }
    SHALE_UNROLL
    for (int k = 0; k < kPartialsInFlight; ++k) {
      SHALE_UNROLL
      for (int i = 0; i < kPack; ++i) sum.at[i] += rows[k].at[i];
    }
  }
  SHALE_UNROLL
  for (int i = 0; i < kPack; ++i) sum.at[i] *= scale;
  StoreGradient<kAligned>(d_weight, token, c, C, sum, accumulate);
}

// A block owns a row of d_positions, in some of the columns. A row past the end of the sequences has a sum of zero.
template <class T, bool kAligned>
SHALE_KERNEL SHALE_BOUNDS(kThreads) EmbeddingPositionsKernel(Global<T> d_out, Global<float> d_positions, int64_t tokens,
                                                             int64_t S, int64_t C, bool accumulate) {
  const int64_t s = blockIdx.x;
  const int64_t c = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kPackOf<T>;
  const auto sum = SumRows<kAligned>(d_out, c, C, [&](int64_t k) -> int64_t {
    const int64_t t = s + k * S;
    return s < S && t < tokens ? t : -1;
  });
  StoreGradient<kAligned>(d_positions, s, c, C, sum, accumulate);
}

LaunchShape RowsShape(int64_t rows, int64_t C, int64_t columns_per_block) {
  return {.grid = dim3(static_cast<unsigned>(rows), static_cast<unsigned>(CeilDivide(C, columns_per_block))),
          .block = dim3(kThreads)};
}

absl::Status Zero(const char* name, const Tensor& x, StreamHandle stream) {
  const int64_t n = x.elements();
  const auto kernel = Aligned16(x) ? ZeroKernel<kPackOf<float>> : ZeroKernel<1>;
  return Launch(name, kernel, FlatShape(n), stream, Whole<float>(x, "d_weight"), n);
}

template <class T, bool kAligned>
absl::Status SumRuns(const EmbeddingBackward& op, const SortedTokens& sorted, const Partials& partials,
                     StreamHandle stream) {
  const int64_t tokens = op.d_out_TC.dim(0), C = op.d_out_TC.dim(1), columns = kThreads * kPackOf<T>;
  const Global<T> d_out = Whole<T>(op.d_out_TC, "d_out");
  if (partials.rows > 0) {
    SHALE_RETURN_IF_ERROR(Launch("EmbeddingBackward", EmbeddingSegmentsKernel<T, kAligned>,
                                 RowsShape(partials.rows, C, columns), stream, sorted, d_out, partials, C));
  }
  SHALE_RETURN_IF_ERROR(Launch("EmbeddingBackward", EmbeddingRunsKernel<T, kAligned>, RowsShape(tokens, C, columns),
                               stream, sorted, d_out, partials, Whole<float>(op.d_weight_VC, "d_weight"), C,
                               op.accumulate, op.scale));
  if (!op.d_positions_PC.present()) return absl::OkStatus();
  return Launch("EmbeddingBackward", EmbeddingPositionsKernel<T, kAligned>,
                RowsShape(op.d_positions_PC.dim(0), C, columns), stream, d_out,
                Whole<float>(op.d_positions_PC, "d_positions"), tokens, op.tokens_BS.dim(1), C, op.accumulate);
}

}  // namespace

absl::Status Run(const EmbeddingForward& op, Scratch scratch, StreamHandle stream) {
  const int64_t C = op.out_TC.dim(1);
  return WithElement(op.out_TC.dtype, [&](auto element) {
    using T = decltype(element);
    const bool aligned =
        C % kPackOf<T> == 0 && RowsAligned(op.weight_VC) && RowsAligned(op.positions_PC) && RowsAligned(op.out_TC);
    const auto kernel = aligned ? EmbeddingForwardKernel<T, true> : EmbeddingForwardKernel<T, false>;
    return Launch("EmbeddingForward", kernel, RowsShape(op.out_TC.dim(0), C, kThreads * kPacks * kPackOf<T>), stream,
                  Whole<int32_t>(op.tokens_BS, "tokens"), Whole<T>(op.weight_VC, "weight"),
                  Whole<T>(op.positions_PC, "positions"), Whole<int32_t>(op.position_ids_BS, "position_ids"),
                  Whole<int32_t>(op.begins_B, "begins"), Whole<T>(op.out_TC, "out"), op.weight_VC.dim(0),
                  op.positions_PC.present() ? op.positions_PC.dim(0) : 0, op.tokens_BS.dim(1), C, op.scale);
  });
}

absl::Status Run(const EmbeddingBackward& op, Scratch scratch, StreamHandle stream) {
  const int64_t tokens = op.tokens_BS.elements(), C = op.d_out_TC.dim(1);
  auto* const places = reinterpret_cast<int32_t*>(scratch.data);
  const SortedTokens sorted = {.tokens = Whole<int32_t>(op.tokens_BS, "tokens"),
                               .begins = Global<int32_t>(places, tokens, "begins of runs"),
                               .order = Global<int32_t>(places + tokens, tokens, "order"),
                               .T = tokens,
                               .V = op.d_weight_VC.dim(0)};
  const int64_t places_bytes = EmbeddingPlacesBytes(tokens);
  const Partials partials({scratch.data + places_bytes, scratch.size_bytes - places_bytes}, 1,
                          EmbeddingPartialRows(tokens), C);
  const LaunchShape sort = {.grid = dim3(static_cast<unsigned>(CeilDivide(tokens, kSortThreads))),
                            .block = dim3(kSortThreads)};
  SHALE_RETURN_IF_ERROR(
      Launch("EmbeddingBackward", SortTokensKernel, sort, stream, sorted.tokens, sorted.begins, sorted.order, tokens));
  if (!op.accumulate) SHALE_RETURN_IF_ERROR(Zero("EmbeddingBackward", op.d_weight_VC, stream));
  return WithElement(op.d_out_TC.dtype, [&](auto element) {
    using T = decltype(element);
    const bool aligned = C % kPackOf<T> == 0 && RowsAligned(op.d_out_TC) && RowsAligned(op.d_weight_VC) &&
                         RowsAligned(op.d_positions_PC);
    return aligned ? SumRuns<T, true>(op, sorted, partials, stream) : SumRuns<T, false>(op, sorted, partials, stream);
  });
}

}  // namespace shale::cuda
