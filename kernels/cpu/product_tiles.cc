#include "kernels/cpu/product_tiles.h"

#include <algorithm>

#include "kernels/cpu/packed_operand.h"
#include "kernels/integers.h"

namespace shale::cpu {
namespace {

constexpr int64_t kRowUnit = 16, kColumnUnit = kPackedColumns;
// Stretches of its rows, 256 bytes and more, still stream from memory.
constexpr int64_t kLeastPieceColumns = 2 * kColumnUnit;

// `size` cut into `count` parts, all about equal, in multiples of `unit`.
struct Cut {
  int64_t size, count, unit;
  int64_t begin(int64_t i) const { return std::min(size, i * CeilDivide(size, unit) / count * unit); }
  int64_t length(int64_t i) const { return begin(i + 1) - begin(i); }
  int64_t most() const { return CeilDivide(CeilDivide(size, unit), count) * unit; }
};

// At most `most` to a part.
Cut CutOf(int64_t size, int64_t most, int64_t unit) { return {size, CeilDivide(size, most), unit}; }

struct Grid {
  Cut m, n;
  int64_t tiles() const { return m.count * n.count; }
};

// Tiles of up to 256 x 512 are as fast as the whole. Fewer than eight would leave threads idle, so that they shrink,
// but not below 64 nor to less than some 30 microseconds of work.
Grid PlainGrid(const ProductShape& s) {
  int64_t m = 256, n = 512;
  const auto cut = [&] { return Grid{CutOf(s.m, m, kRowUnit), CutOf(s.n, n, kColumnUnit)}; };
  while (cut().tiles() < 8) {
    const int64_t rows = std::min(m, s.m), columns = std::min(n, s.n);
    if (std::max(rows, columns) <= 64 || rows * columns * s.k <= int64_t{1} << 23) break;
    (columns > rows ? n : m) /= 2;
  }
  return cut();
}

// Of products with a transposed, whose tiles copy their parts of a and b: the larger a tile, the less often.
constexpr int64_t kLeastTransposed = 64, kMostTransposed = 1408;

// For some number of threads: tiles of some milliseconds, a multiple of four of them, or so many that the rest matters
// little.
Grid TransposedGrid(const ProductShape& s) {
  constexpr int64_t kMost = 768, kWork = int64_t{1} << 29, kShare = 4;
  const int64_t wanted = std::max(kShare, s.m * s.n * s.k / kWork);
  Grid grid{CutOf(s.m, kMost, kRowUnit), CutOf(s.n, kMost, kColumnUnit)};
  const auto even = [](const Grid& g) { return g.tiles() % kShare == 0; };
  for (int64_t rows = grid.m.count; rows <= s.m / kLeastTransposed; ++rows) {
    const Grid next{{s.m, rows, kRowUnit}, grid.n};
    const bool many = next.tiles() >= 8 * kShare;
    // Else the most that are even, or what there is.
    if (even(next) || many || !even(grid)) grid = next;
    if (next.tiles() >= wanted && (even(next) || many)) break;
  }
  return grid;
}

// For `threads`: what takes them the least time, if a tile's is that of its elements and of what it copies. At least
// two tiles, for a whole product oneDNN may take another kernel, which sums in another order.
Grid TransposedGridFor(const ProductShape& s, int threads) {
  // Copying an element of an operand takes as long as multiplying it for so many of c.
  constexpr int64_t kCopy = 16;
  const int64_t most_rows = std::max<int64_t>(1, s.m / kLeastTransposed);
  const int64_t most_columns = std::max<int64_t>(1, s.n / kLeastTransposed);
  const int64_t least_rows = CeilDivide(s.m, kMostTransposed), least_columns = CeilDivide(s.n, kMostTransposed);
  // More only make them smaller.
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

// Whole rows, for c must have no gaps; as many tiles for each thread as far as there are rows.
Grid PackedGrid(const ProductShape& s, int threads) {
  const int64_t rounds = CeilDivide(s.m, threads * kMostPackedRows);
  const int64_t count = std::min(rounds * threads, std::max<int64_t>(1, s.m / kLeastPackedRows));
  return {{s.m, count, kRowUnit}, {s.n, 1, kColumnUnit}};
}

// Of a piece. A tile of bf16 takes half of an L2 cache. Of less than a unit of columns oneDNN has no fast one: if there
// are two for each tile, the last has more than one.
Grid GatheredGrid(const ProductShape& s, int threads) {
  constexpr int64_t kMostRows = 256, kMostColumns = 1024;
  const int64_t rounds = CeilDivide(s.m, threads * kMostRows);
  const int64_t rows = std::min(rounds * threads, std::max<int64_t>(1, s.m / kLeastPackedRows));
  int64_t columns = CeilDivide(s.n, kMostColumns);
  while (rows * columns < threads && 2 * (columns + 1) * kColumnUnit <= s.n) ++columns;
  return {{s.m, rows, kRowUnit}, {s.n, columns, kColumnUnit}};
}

Grid GridOf(const ProductShape& s, TileOrder order, int threads) {
  if (order == TileOrder::kPackedB) return PackedGrid(s, threads);
  if (order == TileOrder::kGathered) return GatheredGrid(s, threads);
  constexpr int64_t kLeastWork = int64_t{1} << 25;
  if (order == TileOrder::kPlain || s.m * s.n * s.k < kLeastWork) return PlainGrid(s);
  return s.dtype == DType::kBFloat16 ? TransposedGridFor(s, threads) : TransposedGrid(s);
}

}  // namespace

bool IsPackedInPieces(const ProductShape& shape) {
  constexpr int64_t kMostWhole = int64_t{32} << 20;
  return PackedBytes(shape.dtype, shape.k, shape.n) > kMostWhole;
}

std::vector<int64_t> PieceColumns(const ProductShape& shape) {
  constexpr int64_t kMostOfPiece = int64_t{4} << 20;
  if (!IsPackedInPieces(shape)) return {shape.n};
  const int64_t fitting = kMostOfPiece / PackedBytes(shape.dtype, shape.k, kColumnUnit) * kColumnUnit;
  const Cut cut = CutOf(shape.n, std::max(fitting, kLeastPieceColumns), kColumnUnit);
  std::vector<int64_t> columns;
  for (int64_t i = 0; i < cut.count; ++i) columns.push_back(cut.length(i));
  return columns;
}

std::vector<ProductTile> TilesOf(const ProductShape& shape, TileOrder order, int threads) {
  const Grid grid = GridOf(shape, order, threads);
  std::vector<ProductTile> tiles;
  for (int64_t i = 0; i < grid.m.count; ++i) {
    for (int64_t j = 0; j < grid.n.count; ++j) {
      tiles.push_back({grid.m.begin(i), grid.n.begin(j), grid.m.length(i), grid.n.length(j)});
    }
  }
  return tiles;
}

}  // namespace shale::cpu
