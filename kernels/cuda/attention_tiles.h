// Parts of the attention kernels on ordinary cores, forward and backward: tiles of rows, which lie in shared memory as
// fp32, and matmuls of tiles, whose results threads hold in registers.
//
// A block owns a tile of `rows` and loops over tiles of `columns`. Thread (x, y) of a block owns the scores of rows
// y + 16 i and columns x + kThreadsX j. In the same rows of the result it owns packs x + kThreadsX c of four elements.
// A row thus belongs to adjacent lanes of one warp. Rows of D elements are padded with zeros to kWidth.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention_operands.h"
#include "kernels/cuda/flat.h"
#include "kernels/cuda/portable.h"

namespace shale::cuda {

// Sizes of the tiles for heads of up to kMaxWidth elements, and of the share that each thread owns.
template <int kMaxWidth, int kRowsEach, int kColumnsEach>
struct Tiles {
  static constexpr int kWidth = kMaxWidth;
  static constexpr int kThreadsY = 16, kThreadsX = kWidth > 128 ? 16 : 8, kThreads = kThreadsX * kThreadsY;
  static constexpr int kRowsPerThread = kRowsEach, kColumnsPerThread = kColumnsEach;
  static constexpr int kRows = kThreadsY * kRowsEach, kColumns = kThreadsX * kColumnsEach;
  static constexpr int kResultPacks = kWidth / (4 * kThreadsX);

  // Floats from one row to the next in shared memory. The 4 extra put packs of adjacent rows into different banks.
  static constexpr int kStride = kWidth + 4;
  // Floats from one row of weights to the next. The lanes of a warp, which write rows of kThreadsX columns, all write
  // to different banks.
  static constexpr int kWeightStride = kColumns % 32 == kThreadsX ? kColumns : kColumns + kThreadsX;
  static constexpr int kRowTile = kRows * kStride, kColumnTile = kColumns * kStride,
                       kWeightTile = kRows * kWeightStride;

  using Scores = float[kRowsPerThread][kColumnsPerThread];
  using Result = float[kRowsPerThread][4 * kResultPacks];
};

template <class TilesT, int kCount, int N, class T>
SHALE_DEVICE void LoadPieces(const Heads<T>& from, int b, int h, int first, const Shared<float>& shared, int tile) {
  constexpr int kPerRow = TilesT::kWidth / N;
  const int thread = threadIdx.y * TilesT::kThreadsX + threadIdx.x;
  for (int piece = thread; piece < kCount * kPerRow; piece += TilesT::kThreads) {
    const int row = piece / kPerRow, d = piece % kPerRow * N, to = tile + row * TilesT::kStride + d;
    Floats<N> floats = {};
    if (first + row < from.length && d < from.width) {
      floats = LoadFloats<N>(from.at, from.Begin(b, first + row, h) + d);
    }
    if constexpr (N == 1) {
      shared.Store(to, floats.at[0]);
    } else {
      for (int begin = 0; begin < N; begin += 4) {
        Pack<float, 4> pack;
        for (int e = 0; e < 4; ++e) pack.at[e] = floats.at[begin + e];
        shared.template Store<4>(to + begin, pack);
      }
    }
  }
}

// Loads rows [first, first + kCount) of head h into the tile that begins at element `tile` of shared memory. Stores
// zeros where the operand has no elements.
template <class TilesT, int kCount, class T>
SHALE_DEVICE void LoadTile(const Heads<T>& from, int b, int h, int first, const Shared<float>& shared, int tile) {
  if (from.packs) {
    LoadPieces<TilesT, kCount, kPackOf<T>>(from, b, h, first, shared, tile);
  } else {
    LoadPieces<TilesT, kCount, 1>(from, b, h, first, shared, tile);
  }
}

// Sets scores[i][j] to the dot product, over `width` elements, of the thread's row i of tile `rows` and its column j of
// tile `columns`.
template <class TilesT>
SHALE_DEVICE void Multiply(const Shared<float>& shared, int rows, int columns, int width,
                           typename TilesT::Scores& scores) {
  constexpr int kR = TilesT::kRowsPerThread, kC = TilesT::kColumnsPerThread;
  SHALE_UNROLL for (int i = 0; i < kR; ++i) { SHALE_UNROLL for (int j = 0; j < kC; ++j) scores[i][j] = 0; }
  for (int d = 0; d < width; d += 4) {
    Pack<float, 4> row[kR], column[kC];
    SHALE_UNROLL for (int i = 0; i < kR; ++i) {
      row[i] = shared.template Load<4>(rows + (threadIdx.y + TilesT::kThreadsY * i) * TilesT::kStride + d);
    }
    SHALE_UNROLL for (int j = 0; j < kC; ++j) {
      column[j] = shared.template Load<4>(columns + (threadIdx.x + TilesT::kThreadsX * j) * TilesT::kStride + d);
    }
    SHALE_UNROLL for (int e = 0; e < 4; ++e) {
      SHALE_UNROLL for (int i = 0; i < kR; ++i) {
        SHALE_UNROLL for (int j = 0; j < kC; ++j) { scores[i][j] = fmaf(row[i].at[e], column[j].at[e], scores[i][j]); }
      }
    }
  }
}

// Stores the weight of the thread's row i and column j where AddWeighted reads it.
template <class TilesT>
SHALE_DEVICE void StoreWeight(const Shared<float>& shared, int weights, int i, int j, float weight) {
  const int row = threadIdx.y + TilesT::kThreadsY * i, column = threadIdx.x + TilesT::kThreadsX * j;
  shared.Store(weights + row * TilesT::kWeightStride + column, weight);
}

// Adds the rows of tile `columns`, each multiplied by its weight in the thread's row i, to result[i].
template <class TilesT>
SHALE_DEVICE void AddWeighted(const Shared<float>& shared, int weights, int columns, typename TilesT::Result& result) {
  constexpr int kR = TilesT::kRowsPerThread;
  for (int j = 0; j < TilesT::kColumns; j += 4) {
    Pack<float, 4> weight[kR];
    SHALE_UNROLL for (int i = 0; i < kR; ++i) {
      weight[i] = shared.template Load<4>(weights + (threadIdx.y + TilesT::kThreadsY * i) * TilesT::kWeightStride + j);
    }
    SHALE_UNROLL for (int e = 0; e < 4; ++e) {
      SHALE_UNROLL for (int c = 0; c < TilesT::kResultPacks; ++c) {
        const int d = 4 * (threadIdx.x + TilesT::kThreadsX * c);
        const Pack<float, 4> value = shared.template Load<4>(columns + (j + e) * TilesT::kStride + d);
        SHALE_UNROLL for (int i = 0; i < kR; ++i) {
          SHALE_UNROLL for (int f = 0; f < 4; ++f) {
            result[i][4 * c + f] = fmaf(weight[i].at[e], value.at[f], result[i][4 * c + f]);
          }
        }
      }
    }
  }
}

// Writes the result, each row multiplied by its `factor`, to head h from row `first` on.
template <class TilesT, class T>
SHALE_DEVICE void StoreResult(const Heads<T>& to, int b, int h, int first, const typename TilesT::Result& result,
                              const float (&factor)[TilesT::kRowsPerThread]) {
  SHALE_UNROLL for (int i = 0; i < TilesT::kRowsPerThread; ++i) {
    const int position = first + threadIdx.y + TilesT::kThreadsY * i;
    if (position >= to.length) continue;
    const int64_t row = to.Begin(b, position, h);
    SHALE_UNROLL for (int c = 0; c < TilesT::kResultPacks; ++c) {
      const int d = 4 * (threadIdx.x + TilesT::kThreadsX * c);
      Pack<T, 4> pack;
      SHALE_UNROLL for (int e = 0; e < 4; ++e) pack.at[e] = Narrow<T>(result[i][4 * c + e] * factor[i]);
      if (to.packs) {
        if (d < to.width) to.at.template Store<4>(row + d, pack);
      } else {
        SHALE_UNROLL for (int e = 0; e < 4; ++e) {
          if (d + e < to.width) to.at.Store(row + d + e, pack.at[e]);
        }
      }
    }
  }
}

// Calls run(TilesFor<W>()) with the smallest W of 32, 64, 128 and 256 that holds heads of `width` elements. Returns
// InvalidArgument if they are wider.
template <template <int> class TilesFor, class Run>
absl::Status WithTiles(const char* name, int64_t width, const Run& run) {
  if (width <= 32) return run(TilesFor<32>());
  if (width <= 64) return run(TilesFor<64>());
  if (width <= 128) return run(TilesFor<128>());
  if (width <= 256) return run(TilesFor<256>());
  return absl::InvalidArgumentError(absl::StrCat(name, ": heads of width ", width, "; wanted at most 256"));
}

}  // namespace shale::cuda
