// What the kernels of fp8 matrices share: the largest magnitude of a block of threads, and tiles.
//
// [Note: tiles of fp8] A block owns a tile of kTile x kTile numbers. A thread reads kOwnColumns of each of kOwnRows
// rows, in packs that it requests before it waits for any, and writes the codes of a row as one pack. The columns of
// its numbers are words of kOwnRows codes. They go through shared memory, from which a thread reads the codes of 16
// rows of a column, one pack of the transposed matrix. Threads of a warp write to different banks, because the place of
// a word depends on its column.
#pragma once

#include <cstdint>

#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/float8.h"
#include "kernels/float8_scales.h"

namespace shale::cuda {

inline constexpr int kThreads = 256;  // Of a block.

SHALE_DEVICE uint32_t Larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

// Returns the magnitude of these bits, with one NaN in place of all.
SHALE_DEVICE float MagnitudeOf(uint32_t bits) {
  constexpr uint32_t kInfinity = 0x7F800000, kNan = 0x7FC00000;
  return __uint_as_float(bits > kInfinity ? kNan : bits);
}

// Returns the largest number of the block, in every thread. All threads must call it, once.
template <int kBlockThreads>
SHALE_DEVICE uint32_t LargestOfBlock(uint32_t largest) {
  SHALE_UNROLL
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) {
    largest = Larger(largest, __shfl_xor_sync(kAllLanes, largest, lanes));
  }
  SHALE_SHARED_ARRAY(uint32_t, of_warp, kBlockThreads / kWarpThreads);
  if (threadIdx.x % kWarpThreads == 0) of_warp.Store(threadIdx.x / kWarpThreads, largest);
  __syncthreads();
  for (int w = 0; w < kBlockThreads / kWarpThreads; ++w) largest = Larger(largest, of_warp.Load(w));
  return largest;
}

inline constexpr int kTile = 128;
inline constexpr int kOwnRows = 4, kOwnColumns = 16;
inline constexpr int kRowThreads = kTile / kOwnColumns;  // Threads of a row. They are neighbors.
inline constexpr int kColumnWords = kTile / kOwnRows;    // Words of a column of the tile.
inline constexpr int kPackWords = 4;                     // Words of a pack of 16 codes.
static_assert(kTile / kOwnRows * kRowThreads == kThreads && kTile == kFloat8Block);

// Returns the place of a word of the tile in shared memory. Packs of a column stay whole, in another order in each
// group of kOwnColumns columns.
SHALE_DEVICE int PlaceOf(int column, int word) {
  const int pack = (word / kPackWords) ^ (column / kOwnColumns);
  return column * kColumnWords + pack * kPackWords + word % kPackWords;
}

template <class Format>
SHALE_DEVICE uint32_t WordOfCodes(float a, float b, float c, float d) {
  return Float8PairOf<Format>(a, b) | Float8PairOf<Format>(c, d) << 16;
}

SHALE_DEVICE Pack<uint8_t, 16> CodesOf(const Pack<uint32_t, kPackWords>& words) {
  Pack<uint8_t, 16> codes;
  SHALE_UNROLL
  for (int i = 0; i < 16; ++i) codes.at[i] = static_cast<uint8_t>(words.at[i / 4] >> (i % 4 * 8));
  return codes;
}

// Writes the columns of a tile, which begins at this row and column of a matrix, to the transposed matrix.
template <bool kAligned>
SHALE_DEVICE void StoreColumns(const Shared<uint32_t>& tile, const Global<uint8_t>& transposed, int64_t first_row,
                               int64_t first_column, int64_t R, int64_t C) {
  constexpr int kColumnPacks = kColumnWords / kPackWords;
  SHALE_UNROLL
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kColumnPacks; i += kThreads) {
    const int column = i / kColumnPacks, pack = i % kColumnPacks;
    if (first_column + column >= C) break;
    const auto words = tile.template Load<kPackWords>(PlaceOf(column, pack * kPackWords));
    StorePack<kAligned>(transposed, (first_column + column) * R, first_row + pack * 16, R, CodesOf(words));
  }
}

// The tile of a block, and the first of the numbers in it that a thread owns.
struct OwnPlace {
  int64_t tile_row, tile_column;  // Counted in tiles.
  int row, column;                // In the tile.
  SHALE_DEVICE int64_t first_row() const { return tile_row * kTile; }
  SHALE_DEVICE int64_t first_column() const { return tile_column * kTile; }
};
SHALE_DEVICE OwnPlace PlaceOfThread(int64_t column_tiles) {
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t tile_row = Quotient(blockIdx.x, column_tiles);
  return {tile_row, blockIdx.x - tile_row * column_tiles, thread / kRowThreads * kOwnRows,
          thread % kRowThreads * kOwnColumns};
}

}  // namespace shale::cuda
