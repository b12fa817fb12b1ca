// How kernels divide rows and columns among blocks and teams, as far as the scratch that they need depends on it.
// Kernels launch by it, and scratch.cc plans by it. Plain C++, which builds without a CUDA toolkit.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "kernels/dtype.h"
#include "kernels/integers.h"

namespace shale::cuda {

// Streaming multiprocessors (SMs) of an H200. Other GPUs use the same number, and so get the same chunks and bits.
inline constexpr int64_t kSms = 132;

// Bytes that a thread accesses at once: a pack.
inline constexpr int64_t kPackBytes = 16;

// Divides rows into at most `most` chunks of `per_chunk` rows, a multiple of `granule`; the last chunk may be smaller.
struct Chunks {
  int64_t count = 0, per_chunk = 0;

  static Chunks Of(int64_t rows, int64_t granule, int64_t most) {
    const int64_t granules = CeilDivide(rows, granule);
    const int64_t per_chunk = CeilDivide(granules, most) * granule;
    return {.count = CeilDivide(rows, per_chunk), .per_chunk = per_chunk};
  }
};

// A block that sums columns ([Note: column sums] in column_sums.h) has kColumnLanes x kRowSlots threads. Each lane owns
// a pack of columns.
inline constexpr int kColumnLanes = 16;
inline constexpr int kRowSlots = 16;
inline constexpr int kColumnBlocksPerSm = 4;  // The most that the registers of an SM allow.

// The division of a matrix among blocks that sum columns: each owns a pack per lane of the columns, and a chunk of the
// rows.
struct ColumnShape {
  int64_t column_blocks = 0;
  Chunks chunks;

  static ColumnShape Of(DType act, int64_t rows, int64_t C) {
    const int64_t width = kColumnLanes * (kPackBytes / SizeOf(act)), column_blocks = CeilDivide(C, width);
    // Two full waves of blocks, with chunks large enough to be worth a partial row.
    const int64_t wanted = 2 * kColumnBlocksPerSm * kSms;
    return {.column_blocks = column_blocks,
            .chunks = Chunks::Of(rows, 2 * kRowSlots, CeilDivide(wanted, column_blocks))};
  }
};

// Partial rows of column sums lie in scratch: `sums` matrices of `rows` rows by C columns of fp32. Returns the elements
// from one row to the next: C rounded up to whole packs of any element type.
inline int64_t PartialStride(int64_t C) { return RoundUp(C, 8); }
inline int64_t PartialBytes(int sums, int64_t rows, int64_t C) {
  return sums * rows * PartialStride(C) * static_cast<int64_t>(sizeof(float));
}

// The places of the gradient of an embedding that one block sums ([Note: frequent tokens] in embedding.cu), the bytes
// of scratch for its sorted positions, and its partial rows after these.
inline constexpr int kEmbeddingSegment = 128;
inline int64_t EmbeddingPlacesBytes(int64_t tokens) {
  return RoundUp(2 * tokens * static_cast<int64_t>(sizeof(int32_t)), 2 * kPackBytes);
}
inline int64_t EmbeddingPartialRows(int64_t tokens) {
  return tokens > kEmbeddingSegment ? CeilDivide(tokens, kEmbeddingSegment) : 0;
}

// A team of threads that holds a row in registers ([Note: teams] in row_tile.h).
struct RowTeam {
  int threads = 0;
  int packs = 0;            // That each thread owns.
  int teams = 0;            // Of a block.
  int forward_blocks = 0;   // Blocks per SM of the forward kernels of norms: so many that registers suffice.
  int backward_blocks = 0;  // The same of the backward kernels, which sum columns in registers as well.

  constexpr int block_threads() const { return threads * teams; }
  constexpr int64_t row_packs() const { return static_cast<int64_t>(threads) * packs; }
};
// Rows of up to 128 packs (1,024 columns in bf16) have one warp or half a warp. A few warps with many requests each
// keep the memory busy, because a team requests its next row before it reduces the present one. Where a warp has four
// packs of each thread, an H200 holds 1,056 warps that sum columns, so that 2^n rows keep nearly all of them at work to
// the end.
inline constexpr RowTeam kRowTeams[] = {{16, 1, 24, 3, 2}, {32, 2, 6, 3, 2},  {32, 4, 4, 4, 2},
                                        {64, 4, 2, 4, 2},  {128, 4, 1, 4, 2}, {256, 4, 1, 2, 1}};
inline constexpr int kLargestTeam = std::size(kRowTeams) - 1;

// Returns the place in kRowTeams of the smallest team that holds a row of so many packs, or of the largest team if none
// does.
inline int TeamOf(int64_t row_packs) {
  int team = 0;
  while (team < kLargestTeam && kRowTeams[team].row_packs() < row_packs) ++team;
  return team;
}

// Returns the chunks of rows whose columns the blocks of a norm's backward kernel sum: one for each block that the SMs
// hold at once, so 132 or 264.
inline Chunks NormBackwardChunks(const RowTeam& team, int64_t rows) {
  return Chunks::Of(rows, team.teams, kSms * team.backward_blocks);
}
// Returns how many partial rows its column sums have.
inline int64_t NormPartialRows(DType act, int64_t rows, int64_t C) {
  const int64_t packs = CeilDivide(C, kPackBytes / SizeOf(act));
  const RowTeam& team = kRowTeams[TeamOf(packs)];
  return packs <= team.row_packs() ? NormBackwardChunks(team, rows).count : ColumnShape::Of(act, rows, C).chunks.count;
}

// Elements of a flat vector that one block of Sum or SumSquares sums into a partial sum.
inline constexpr int64_t kReductionChunk = 16384;

// The packs of a matrix that the blocks of AbsMax compare, kMaximumPacks each. Rows that lie one after another are one
// row.
inline constexpr int64_t kMaximumPacks = 2048;
struct PackedRows {
  int64_t rows = 0, columns = 0, packs_of_row = 0;

  static PackedRows Of(DType act, int64_t rows, int64_t columns, bool contiguous) {
    if (contiguous) columns *= std::exchange(rows, 1);
    return {.rows = rows, .columns = columns, .packs_of_row = CeilDivide(columns, kPackBytes / SizeOf(act))};
  }
  int64_t packs() const { return rows * packs_of_row; }
  int64_t blocks() const { return CeilDivide(packs(), kMaximumPacks); }
};

// Elements of a parameter that one block of Adafactor's kDirection sums into partial sums.
inline constexpr int64_t kFactorChunk = 4096;

// The most ranks whose data SumRanks sums: their addresses are the parameters of one launch.
inline constexpr int kMostSummedRanks = 64;

}  // namespace shale::cuda
