// Parts of the attention kernels on tensor cores, forward and backward, for operands of 16 bits.
//
// A block owns a tile of kRows rows, 16 for each of its warps, and loops over tiles of kColumns columns, which lie in
// shared memory in the dtype of the operands. Weights and results are in the registers of a warp: 8 x 8 matrices as
// MultiplyAdd has them (portable.h). So a lane holds two neighbors in row lane / 4 of the warp and two in the row that
// is 8 further. Rows of D elements are padded with zeros to kWidth.
//
// Tiles of columns are copied while others are multiplied. Most kernels need two operands one after the other, and have
// a tile for each: while the first is multiplied the second is copied, and then the first of the next columns.
#pragma once

#include <cstdint>
#include <initializer_list>

#include "absl/status/status.h"
#include "kernels/cuda/attention_operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/op.h"

namespace shale {
struct AttentionForward;   // kernels/ops/attention.h
struct AttentionBackward;  // kernels/ops/attention.h
}  // namespace shale

namespace shale::cuda {

// The shared memory that every supported GPU offers a block.
inline constexpr int kLeastSharedBytes = 99 << 10;

// Returns whether the tensor cores compute an op. `operands` are its queries, which come first, and its other operands
// of the same dtype. They must have 16 bits and rows of whole packs of 16 bytes, and heads at most 256 elements.
bool TakesMatrices(std::initializer_list<const Tensor*> operands);

// Start the kernels. Backward needs `delta_BHS`, the sums over D of d_out * out. REQUIRES: TakesMatrices says so.
absl::Status RunOnMatrices(const AttentionForward& op, StreamHandle stream);
absl::Status RunOnMatrices(const AttentionBackward& op, const Global<float>& delta_BHS, StreamHandle stream);

template <int kMaxWidth, int kWarpsOfBlock, int kColumnsOfTile>
struct MatrixTiles {
  static constexpr int kWidth = kMaxWidth, kColumns = kColumnsOfTile, kWarps = kWarpsOfBlock, kRows = 16 * kWarps,
                       kThreads = kWarpThreads * kWarps;
  // Elements from one row to the next in shared memory. The 16 extra bytes put 8 rows into different banks.
  static constexpr int kStride = kWidth + 8;
  static constexpr int kRowTile = kRows * kStride, kColumnTile = kColumns * kStride;
  // Whether a warp keeps left operands of its rows in registers. Rows of more than 128 elements leave too few.
  static constexpr bool kRowsInRegisters = kWidth <= 128;

  using Left = unsigned[kWidth / 16][4];  // 16 rows of kWidth elements.
  using Scores = float[kColumns / 8][4];  // 16 rows of kColumns.
  using Result = float[kWidth / 8][4];    // 16 rows of kWidth.
};

// The row of the lane's element i of 0 and 1, and the column of its element e of 4, in an 8 x 8 matrix and the one
// below.
SHALE_DEVICE int LaneRow(int i) { return static_cast<int>(threadIdx.x) % kWarpThreads / 4 + 8 * i; }
SHALE_DEVICE int LaneColumn(int e) { return static_cast<int>(threadIdx.x) % 4 * 2 + e % 2; }

// Begins to copy rows [first, first + kCount) of head h to the tile at element `tile` of shared memory, with zeros
// where the operand has no elements.
template <class TilesT, int kCount, class T>
SHALE_DEVICE void BeginCopyOfRows(const Heads<T>& from, int b, int h, int first, const Shared<T>& shared, int tile) {
  // Each thread copies the same pack of every kRowsAtOnce'th row.
  constexpr int kPack = kPackOf<T>, kPerRow = TilesT::kWidth / kPack, kRowsAtOnce = TilesT::kThreads / kPerRow;
  static_assert(TilesT::kThreads % kPerRow == 0 && kCount % kRowsAtOnce == 0);
  const int thread = static_cast<int>(threadIdx.x), own = thread / kPerRow, d = thread % kPerRow * kPack;
  const int rows = d < from.width ? from.length - first - own : 0;  // From the thread's first row to the last.
  const int64_t begin = from.Begin(b, first + own, h) + d;
  SHALE_UNROLL for (int row = 0; row < kCount; row += kRowsAtOnce) {
    shared.BeginCopy(tile + (own + row) * TilesT::kStride + d, from.at, begin + row * from.position_stride, row < rows);
  }
}

// Loads the warp's 16 rows from `row` of a tile, 16 elements from 16 step, as the left operand of MultiplyAdd.
template <class TilesT, class T>
SHALE_DEVICE void LoadLeft(const Shared<T>& shared, int tile, int row, int step, unsigned (&a)[4]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  LoadMatrices(shared, tile + (row + lane % 16) * TilesT::kStride + 16 * step + lane / 16 * 8, a);
}

// Loads the left operands of all steps into `rows`.
template <class TilesT, class T>
SHALE_DEVICE void LoadRows(const Shared<T>& shared, int tile, int row, typename TilesT::Left& rows) {
  SHALE_UNROLL for (int step = 0; step < TilesT::kWidth / 16; ++step) {
    LoadLeft<TilesT>(shared, tile, row, step, rows[step]);
  }
}

// Sets `a` to what LoadLeft loads. If the rows of tiles fit the registers, takes it from `rows`, which LoadRows has
// set.
template <class TilesT, class T>
SHALE_DEVICE void GiveLeft(const typename TilesT::Left& rows, const Shared<T>& shared, int tile, int row, int step,
                           unsigned (&a)[4]) {
  if constexpr (TilesT::kRowsInRegisters) {
    SHALE_UNROLL for (int r = 0; r < 4; ++r) a[r] = rows[step][r];
  } else {
    LoadLeft<TilesT>(shared, tile, row, step, a);
  }
}

// Sets scores[j][...] to the dot products of the warp's rows and 8 rows of a tile from 8 j on. left(step, a) gives the
// left operand of a step.
template <class TilesT, class T, class LeftOf>
SHALE_DEVICE void MultiplyRows(const LeftOf& left, const Shared<T>& shared, int tile, typename TilesT::Scores& scores) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int from = tile + (lane % 8 + lane / 16 * 8) * TilesT::kStride + lane / 8 % 2 * 8;
  SHALE_UNROLL for (int j = 0; j < TilesT::kColumns / 8; ++j) {
    SHALE_UNROLL for (int e = 0; e < 4; ++e) scores[j][e] = 0;
  }
  SHALE_UNROLL for (int step = 0; step < TilesT::kWidth / 16; ++step) {
    unsigned a[4];
    left(step, a);
    SHALE_UNROLL for (int j = 0; j < TilesT::kColumns / 16; ++j) {
      unsigned m[4];
      LoadMatrices(shared, from + 16 * j * TilesT::kStride + 16 * step, m);
      MultiplyAdd<T>(a, {m[0], m[1]}, scores[2 * j]);
      MultiplyAdd<T>(a, {m[2], m[3]}, scores[2 * j + 1]);
    }
  }
}

// Adds the rows of a tile, each multiplied by its weight in a row of the warp and rounded to T, to that row of
// `result`.
template <class TilesT, class T>
SHALE_DEVICE void AddWeightedRows(const typename TilesT::Scores& weights, const Shared<T>& shared, int tile,
                                  typename TilesT::Result& result) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const int from = tile + lane % 16 * TilesT::kStride + lane / 16 * 8;
  SHALE_UNROLL for (int j = 0; j < TilesT::kColumns / 16; ++j) {
    const float(&left)[4] = weights[2 * j];
    const float(&right)[4] = weights[2 * j + 1];
    const unsigned a[4] = {PairOf<T>(left[0], left[1]), PairOf<T>(left[2], left[3]), PairOf<T>(right[0], right[1]),
                           PairOf<T>(right[2], right[3])};
    SHALE_UNROLL for (int d = 0; d < TilesT::kWidth / 16; ++d) {
      unsigned m[4];
      LoadTransposed(shared, from + 16 * j * TilesT::kStride + 16 * d, m);
      MultiplyAdd<T>(a, {m[0], m[1]}, result[2 * d]);
      MultiplyAdd<T>(a, {m[2], m[3]}, result[2 * d + 1]);
    }
  }
}

// Writes the warp's rows of the result to head h from position `first` on, row i of a lane multiplied by factor[i].
template <class TilesT, class T>
SHALE_DEVICE void StoreRows(const Heads<T>& to, int b, int h, int first, const typename TilesT::Result& result,
                            const float (&factor)[2]) {
  SHALE_UNROLL for (int i = 0; i < 2; ++i) {
    const int position = first + LaneRow(i);
    if (position >= to.length) continue;
    const int64_t row = to.Begin(b, position, h) + LaneColumn(0);
    SHALE_UNROLL for (int d = 0; d < TilesT::kWidth / 8; ++d) {
      if (8 * d >= to.width) continue;
      const Pack<T, 2> pair = {Narrow<T>(result[d][2 * i] * factor[i]), Narrow<T>(result[d][2 * i + 1] * factor[i])};
      to.at.Store(row + 8 * d, pair);
    }
  }
}

// Calls run(TilesFor<W>()) with the smallest W of 64, 128 and 256 that holds heads of `width` elements.
template <template <int> class TilesFor, class Run>
absl::Status WithMatrixTiles(int64_t width, const Run& run) {
  if (width <= 64) return run(TilesFor<64>());
  return width <= 128 ? run(TilesFor<128>()) : run(TilesFor<256>());
}

}  // namespace shale::cuda
