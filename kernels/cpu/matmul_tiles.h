// Divides a matmul into tiles, each of which one thread computes. Private to kernels/cpu.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/onednn_matmuls.h"

namespace shale::cpu {

// Rows [m, m + rows) and columns [n, n + columns) of c.
struct MatMulTile {
  int64_t m = 0, n = 0, rows = 0, columns = 0;
};

// Tells which operands of a matmul are copied into another order, which decides how the matmul is best divided.
enum class TileOrder {
  kPlain,       // Every tile copies its part of b.
  kPackedB,     // b has been packed before. Tiles are full rows.
  kGathered,    // b has been packed before. Every tile of c is computed in scratch and then copied.
  kTransposedA  // Every tile copies its parts of a and b.
};

// Returns tiles that cover c without gaps or overlaps, row by row. The tiles of packed matmuls, and of bf16 matmuls
// whose operand a is transposed, are made for `threads` threads. Other tiles depend on sizes only, because for another
// tile oneDNN may sum over k in another order.
std::vector<MatMulTile> TilesOf(const MatMulShape& shape, TileOrder order, int threads);

// The number of threads to make tiles for if oneDNN's order of summation depends on the tile even for packed matmuls.
// Results must not depend on the number of threads that run.
inline constexpr int kAnyThreads = 8;

// Returns whether b is too large to be packed all at once.
bool IsPackedInPieces(const MatMulShape& shape);
// Returns the number of columns in each piece of b that is packed at a time, from the first column on. There is one
// piece, or pieces are small enough for the caches, but about two blocks of columns wide at least.
std::vector<int64_t> PieceColumns(const MatMulShape& shape);

// Bounds on the rows of the tiles of packed matmuls. The last tile may have fewer.
inline constexpr int64_t kMostPackedRows = 512, kLeastPackedRows = 32;

}  // namespace shale::cpu
