#include "kernels/cpu/product_tiles.h"

#include <algorithm>

namespace shale::cpu {
namespace {

constexpr int64_t kRowUnit = 16, kColumnUnit = 64;

// `size` cut into parts of `part`, the last one shorter.
struct Cut {
  int64_t size, part;
  int64_t count() const { return (size + part - 1) / part; }
};

// At most `most` to a part, all about equal, in multiples of `unit`.
Cut EvenCut(int64_t size, int64_t most, int64_t unit) {
  const int64_t parts = (size + most - 1) / most;
  const int64_t part = (size + parts - 1) / parts;
  return {size, (part + unit - 1) / unit * unit};
}

struct Grid {
  Cut m, n;
  int64_t tiles() const { return m.count() * n.count(); }
};

// Tiles of up to 256 x 512 are as fast as the whole. Fewer than eight would leave threads idle, so that they shrink,
// but not below 64 nor to less than some 30 microseconds of work.
Grid PlainGrid(const ProductShape& s) {
  int64_t m = 256, n = 512;
  const auto cut = [&] { return Grid{EvenCut(s.m, m, kRowUnit), EvenCut(s.n, n, kColumnUnit)}; };
  while (cut().tiles() < 8 && std::max(m, n) > 64 && std::min(m, s.m) * std::min(n, s.n) * s.k > int64_t{1} << 23) {
    (std::min(n, s.n) > std::min(m, s.m) ? n : m) /= 2;
  }
  return cut();
}

// The larger a tile, the less often parts of a and b are copied. In bf16 tiles of up to 1408 x 1408, as many for each
// thread and at least two, for a whole product oneDNN may take another kernel, which sums in another order; in fp32 of
// up to 768 x 768 and of some milliseconds.
Grid TransposedGrid(const ProductShape& s, int threads) {
  constexpr int64_t kLeast = 64, kWork = int64_t{1} << 29, kLeastWork = int64_t{1} << 25;
  const int64_t work = s.m * s.n * s.k;
  if (work < kLeastWork) return PlainGrid(s);
  const bool by_threads = s.dtype == DType::kBFloat16;
  const int64_t most = by_threads ? 1408 : 768, share = by_threads ? threads : 4;
  const int64_t wanted = std::max(share, by_threads ? 2 : work / kWork);
  Grid grid{EvenCut(s.m, most, kRowUnit), EvenCut(s.n, most, kColumnUnit)};
  const auto even = [&](const Grid& g) { return g.tiles() % share == 0; };
  for (int64_t rows = grid.m.count(); rows <= s.m / kLeast; ++rows) {
    const Grid next{EvenCut(s.m, (s.m + rows - 1) / rows, kRowUnit), grid.n};
    // So many that the rest matters little.
    const bool many = next.tiles() >= 8 * share;
    // Else the most that are even, or what there is.
    if (even(next) || many || !even(grid)) grid = next;
    if (next.tiles() >= wanted && (even(next) || many)) break;
  }
  return grid;
}

// Whole rows, for c must have no gaps; as many tiles for each thread.
Grid PackedGrid(const ProductShape& s, int threads) {
  const int64_t rounds = (s.m + threads * kMostPackedRows - 1) / (threads * kMostPackedRows);
  const int64_t part = (s.m + rounds * threads - 1) / (rounds * threads);
  return {EvenCut(s.m, std::clamp(part, kLeastPackedRows, kMostPackedRows), kRowUnit), {s.n, s.n}};
}

}  // namespace

std::vector<ProductTile> TilesOf(const ProductShape& shape, TileOrder order, int threads) {
  const Grid grid = order == TileOrder::kPlain    ? PlainGrid(shape)
                    : order == TileOrder::kPackedB ? PackedGrid(shape, threads)
                                                   : TransposedGrid(shape, threads);
  std::vector<ProductTile> tiles;
  for (int64_t m = 0; m < shape.m; m += grid.m.part) {
    for (int64_t n = 0; n < shape.n; n += grid.n.part) {
      tiles.push_back({m, n, std::min(grid.m.part, shape.m - m), std::min(grid.n.part, shape.n - n)});
    }
  }
  return tiles;
}

}  // namespace shale::cpu
