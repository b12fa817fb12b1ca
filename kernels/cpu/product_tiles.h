// How a matrix product is cut into tiles, each of which one thread computes. Private to kernels/cpu.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/products.h"

namespace shale::cpu {

// Rows [m, m + rows) and columns [n, n + columns) of c.
struct ProductTile {
  int64_t m = 0, n = 0, rows = 0, columns = 0;
};

// Which parts of a product's operands are brought into another order, and hence how it is best cut.
enum class TileOrder {
  kPlain,       // Every tile copies its part of b.
  kPackedB,     // b lies packed before: tiles are whole rows.
  kGathered,    // b lies packed before, and every tile of c is computed elsewhere, and copied.
  kTransposedA  // Every tile copies its parts of a and b.
};

// Tiles that cover c, without gaps or overlaps, by rows. Those of packed products, and of bf16 with a transposed, are
// made for so many `threads`: there oneDNN's kernels sum over k alike whatever the tile. Elsewhere they need not, and
// sizes alone decide, so that no result depends on the number of threads.
std::vector<ProductTile> TilesOf(const ProductShape& shape, TileOrder order, int threads);

// Whether b, if it is packed, is too large to be packed whole.
bool IsPackedInPieces(const ProductShape& shape);
// How many columns of b are packed at a time, from the first on: all, or pieces so small that caches hold them, unless
// they would have fewer than two blocks of columns.
std::vector<int64_t> PieceColumns(const ProductShape& shape);

// Rows of the tiles of packed products, of which the last may have fewer than others.
inline constexpr int64_t kMostPackedRows = 512, kLeastPackedRows = 32;

}  // namespace shale::cpu
