#include "kernels/cpu/matmul_tiles.h"

#include <algorithm>

#include "kernels/cpu/packed_operand.h"
#include "kernels/integers.h"

namespace shale::cpu {
namespace {

constexpr int64_t kRowUnit = 16, kColumnUnit = kPackedColumns;
// The least bound on the columns of a piece of b. Rows of such a piece, of 256 bytes or more, still stream from memory.
constexpr int64_t kLeastPieceColumns = 2 * kColumnUnit;

// `size` divided into `count` parts of about equal length, in multiples of `unit`.
struct Cut {
  int64_t size, count, unit;
  int64_t begin(int64_t i) const { return std::min(size, i * CeilDivide(size, unit) / count * unit); }
  int64_t length(int64_t i) const { return begin(i + 1) - begin(i); }
  int64_t most() const { return CeilDivide(CeilDivide(size, unit), count) * unit; }
};

// Divides `size` into the fewest parts of at most `most`.
Cut CutOf(int64_t size, int64_t most, int64_t unit) { return {size, CeilDivide(size, most), unit}; }

struct Grid {
  Cut m, n;
  int64_t tiles() const { return m.count * n.count; }
};

// Returns the grid of a plain matmul. Tiles of up to 256 x 512 are as fast as an undivided matmul. Fewer than eight
// would leave threads idle, so tiles are halved until there are eight, but not below 64, nor to less than some 30
// microseconds of work.
Grid PlainGrid(const MatMulShape& s) {
  int64_t m = 256, n = 512;
  const auto cut = [&] { return Grid{CutOf(s.m, m, kRowUnit), CutOf(s.n, n, kColumnUnit)}; };
  while (cut().tiles() < 8) {
    const int64_t rows = std::min(m, s.m), columns = std::min(n, s.n);
    if (std::max(rows, columns) <= 64 || rows * columns * s.k <= int64_t{1} << 23) break;
    (columns > rows ? n : m) /= 2;
  }
  return cut();
}

// Bounds on the tiles of matmuls whose operand a is transposed. Each tile copies its parts of a and b, so larger tiles
// copy less in all.
constexpr int64_t kLeastTransposed = 64, kMostTransposed = 1408;

// Returns a grid for any number of threads. Its tiles take some milliseconds each, and their number is a multiple of
// four, or so large that the remainder matters little.
Grid TransposedGrid(const MatMulShape& s) {
  constexpr int64_t kMost = 768, kWork = int64_t{1} << 29, kShare = 4;
  const int64_t wanted = std::max(kShare, s.m * s.n * s.k / kWork);
  Grid grid{CutOf(s.m, kMost, kRowUnit), CutOf(s.n, kMost, kColumnUnit)};
  const auto even = [](const Grid& g) { return g.tiles() % kShare == 0; };
  for (int64_t rows = grid.m.count; rows <= s.m / kLeastTransposed; ++rows) {
    const Grid next{{s.m, rows, kRowUnit}, grid.n};
    const bool many = next.tiles() >= 8 * kShare;
    // Otherwise keep the finest grid so far that is even, or the finest of all if none is.
    if (even(next) || many || !even(grid)) grid = next;
    if (next.tiles() >= wanted && (even(next) || many)) break;
  }
  return grid;
}

// Returns the grid that takes `threads` threads the least time. The time of a tile is estimated from its elements and
// from what it copies. The grid has at least two tiles if c is large enough: for an undivided matmul oneDNN may choose
// another kernel, which sums in another order.
Grid TransposedGridFor(const MatMulShape& s, int threads) {
  // Copying one element of an operand takes as long as multiplying it for this many elements of c.
  constexpr int64_t kCopy = 16;
  const int64_t most_rows = std::max<int64_t>(1, s.m / kLeastTransposed);
  const int64_t most_columns = std::max<int64_t>(1, s.n / kLeastTransposed);
  const int64_t least_rows = CeilDivide(s.m, kMostTransposed), least_columns = CeilDivide(s.n, kMostTransposed);
  // More parts than this only make the tiles smaller.
  const int64_t more = 4 * threads;
  Grid best{{s.m, least_rows, kRowUnit}, {s.n, least_columns, kColumnUnit}};
  int64_t best_cost = 0;
  for (int64_t rows = least_rows; rows <= std::min(most_rows, least_rows + more); ++rows) {
    for (int64_t columns = least_columns; columns <= std::min(most_columns, least_columns + more); ++columns) {
      const Grid grid{{s.m, rows, kRowUnit}, {s.n, columns, kColumnUnit}};
      if (grid.tiles() < 2 && most_rows * most_columns > 1) continue;
      const int64_t m = grid.m.most(), n = grid.n.most();
      const int64_t cost = CeilDivide(grid.tiles(), threads) * (m * n + kCopy * (m + n));
      if (best_cost > 0 && cost >= best_cost) continue;
      best = grid;
      best_cost = cost;
    }
  }
  return best;
}

// Returns a grid whose tiles are full rows, because c must have no gaps. Each thread gets the same number of tiles, as
// far as there are rows.
Grid PackedGrid(const MatMulShape& s, int threads) {
  const int64_t rounds = CeilDivide(s.m, threads * kMostPackedRows);
  const int64_t count = std::min(rounds * threads, std::max<int64_t>(1, s.m / kLeastPackedRows));
  return {{s.m, count, kRowUnit}, {s.n, 1, kColumnUnit}};
}

// Returns the grid of one piece. A tile of bf16 takes half of an L2 cache. oneDNN has no fast kernel for less than one
// unit of columns; if there are two units for each tile, even the last tile has more than one.
Grid GatheredGrid(const MatMulShape& s, int threads) {
  constexpr int64_t kMostRows = 256, kMostColumns = 1024;
  const int64_t rounds = CeilDivide(s.m, threads * kMostRows);
  const int64_t rows = std::min(rounds * threads, std::max<int64_t>(1, s.m / kLeastPackedRows));
  int64_t columns = CeilDivide(s.n, kMostColumns);
  while (rows * columns < threads && 2 * (columns + 1) * kColumnUnit <= s.n) ++columns;
  return {{s.m, rows, kRowUnit}, {s.n, columns, kColumnUnit}};
}

Grid GridOf(const MatMulShape& s, TileOrder order, int threads) {
  if (order == TileOrder::kPackedB) return PackedGrid(s, threads);
  if (order == TileOrder::kGathered) return GatheredGrid(s, threads);
  constexpr int64_t kLeastWork = int64_t{1} << 25;
  if (order == TileOrder::kPlain || s.m * s.n * s.k < kLeastWork) return PlainGrid(s);
  return s.dtype == DType::kBFloat16 ? TransposedGridFor(s, threads) : TransposedGrid(s);
}

}  // namespace

bool IsPackedInPieces(const MatMulShape& shape) {
  constexpr int64_t kMostWhole = int64_t{32} << 20;
  return PackedBytes(shape.dtype, shape.k, shape.n) > kMostWhole;
}

std::vector<int64_t> PieceColumns(const MatMulShape& shape) {
  constexpr int64_t kMostOfPiece = int64_t{4} << 20;
  if (!IsPackedInPieces(shape)) return {shape.n};
  const int64_t fitting = kMostOfPiece / PackedBytes(shape.dtype, shape.k, kColumnUnit) * kColumnUnit;
  const Cut cut = CutOf(shape.n, std::max(fitting, kLeastPieceColumns), kColumnUnit);
  std::vector<int64_t> columns;
  for (int64_t i = 0; i < cut.count; ++i) columns.push_back(cut.length(i));
  return columns;
}

std::vector<MatMulTile> TilesOf(const MatMulShape& shape, TileOrder order, int threads) {
  const Grid grid = GridOf(shape, order, threads);
  std::vector<MatMulTile> tiles;
  for (int64_t i = 0; i < grid.m.count; ++i) {
    for (int64_t j = 0; j < grid.n.count; ++j) {
      tiles.push_back({grid.m.begin(i), grid.n.begin(j), grid.m.length(i), grid.n.length(j)});
    }
  }
  return tiles;
}

}  // namespace shale::cpu
