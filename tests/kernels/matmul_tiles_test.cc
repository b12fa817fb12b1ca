// Tests how the matmuls of the CPU are cut into tiles.
#include "kernels/cpu/matmul_tiles.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/integers.h"

namespace shale::cpu {
namespace {

MatMulShape ShapeOf(int64_t m, int64_t n, int64_t k, DType dtype) { return {.m = m, .n = n, .k = k, .dtype = dtype}; }

constexpr TileOrder kOrders[] = {TileOrder::kPlain, TileOrder::kPackedB, TileOrder::kGathered, TileOrder::kTransposedA};
constexpr int kThreads[] = {1, 2, 3, 8, 16, 64};

TEST(MatMulTilesTest, CoverEveryElementOnce) {
  for (const TileOrder order : kOrders) {
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      for (const int threads : kThreads) {
        struct Size {
          int64_t m, n, k = 2048;
        };
        for (const auto& [m, n, k] : {Size{1, 1},
                                      {17, 65},
                                      {512, 512},
                                      {1000, 333},
                                      {3000, 20},
                                      {32, 256, 8192},
                                      {38, 384, 50257},
                                      {8, 128, 50257},
                                      {64, 16, 50257},
                                      {64, 1, 2000000}}) {
          // These orders are never used for fewer than 512 rows.
          if (m < 512 && (order == TileOrder::kPackedB || order == TileOrder::kGathered)) continue;
          SCOPED_TRACE(::testing::Message() << m << " x " << n << " x " << k << ", order " << static_cast<int>(order)
                                            << ", " << threads << " threads");
          std::vector<int> times(m * n);
          for (const MatMulTile& tile : TilesOf(ShapeOf(m, n, k, dtype), order, threads)) {
            ASSERT_GT(tile.rows, 0);
            ASSERT_GT(tile.columns, 0);
            ASSERT_LE(tile.m + tile.rows, m);
            ASSERT_LE(tile.n + tile.columns, n);
            for (int64_t i = tile.m; i < tile.m + tile.rows; ++i) {
              for (int64_t j = tile.n; j < tile.n + tile.columns; ++j) ++times[i * n + j];
            }
          }
          EXPECT_TRUE(std::all_of(times.begin(), times.end(), [](int count) { return count == 1; }));
        }
      }
    }
  }
}

// Returns the fraction of the time until the last thread has ended in which `threads` are busy, if a tile takes time in
// proportion to its elements.
double Busy(const std::vector<MatMulTile>& tiles, int threads) {
  int64_t total = 0, most = 0;
  for (const MatMulTile& tile : tiles) {
    total += tile.rows * tile.columns;
    most = std::max(most, tile.rows * tile.columns);
  }
  const int64_t rounds = CeilDivide(std::ssize(tiles), threads);
  return static_cast<double>(total) / static_cast<double>(rounds * threads * most);
}

TEST(MatMulTilesTest, KeepThreadsBusy) {
  for (const int threads : {1, 2, 3, 4, 8, 12, 16, 32}) {
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{2048, 512},
                               {2816, 512},
                               {512, 1408},
                               {512, 1024},
                               {1408, 512},
                               {1536, 768},
                               {1024, 1024},
                               {896, 896},
                               {768, 3072},
                               {8192, 512}}) {
      const auto tiles = TilesOf(ShapeOf(m, n, 2048, DType::kBFloat16), TileOrder::kTransposedA, threads);
      EXPECT_GE(Busy(tiles, threads), 0.85) << m << " x " << n << " on " << threads << " threads: " << tiles.size();
    }
    for (const int64_t m : {520, 1000, 1024, 1030, 2048, 2100, 8192}) {
      if (m < 64 * threads) continue;
      const auto tiles = TilesOf(ShapeOf(m, 512, 2048, DType::kBFloat16), TileOrder::kPackedB, threads);
      EXPECT_EQ(tiles.size() % threads, 0) << m << " rows on " << threads << " threads: " << tiles.size();
      EXPECT_GE(Busy(tiles, threads), 0.8) << m << " rows on " << threads << " threads";
    }
  }
}

TEST(MatMulTilesTest, PackedOnesAreWholeRows) {
  for (const int threads : kThreads) {
    for (const MatMulTile& tile : TilesOf(ShapeOf(1030, 200, 64, DType::kFloat32), TileOrder::kPackedB, threads)) {
      EXPECT_EQ(tile.columns, 200);
      EXPECT_LE(tile.rows, kMostPackedRows);
    }
  }
}

TEST(MatMulTilesTest, PiecesOfALargeOperandAreSmallAndCoverIt) {
  for (const auto& [n, k] :
       {std::pair<int64_t, int64_t>{151936, 896}, {50257, 768}, {129, 400000}, {896, 151936}, {16384, 16384}}) {
    const MatMulShape shape = ShapeOf(512, n, k, DType::kBFloat16);
    EXPECT_TRUE(IsPackedInPieces(shape));
    int64_t at = 0;
    for (const int64_t columns : PieceColumns(shape)) {
      ASSERT_GT(columns, 0);
      // oneDNN has no fast matmul for less than a block of columns.
      EXPECT_GE(columns, 64) << n << " x " << k;
      EXPECT_TRUE(columns <= 128 || columns * k * 2 <= int64_t{5} << 20) << n << " x " << k;
      EXPECT_TRUE(columns % 64 == 0 || at + columns == n) << n << " x " << k;
      for (const int threads : kThreads) {
        const MatMulShape piece = ShapeOf(512, columns, k, DType::kBFloat16);
        for (const MatMulTile& tile : TilesOf(piece, TileOrder::kGathered, threads)) {
          EXPECT_GE(tile.columns, 64);
          EXPECT_LE(tile.rows * tile.columns, 256 * 1024);
        }
      }
      at += columns;
    }
    EXPECT_EQ(at, n);
  }
  const MatMulShape small = ShapeOf(512, 8192, 2048, DType::kBFloat16);
  EXPECT_FALSE(IsPackedInPieces(small));
  EXPECT_EQ(PieceColumns(small), std::vector<int64_t>{8192});
}

TEST(MatMulTilesTest, ThreadsDoNotCutSumsThatDependOnTiles) {
  const auto places = [](TileOrder order, int threads) {
    std::vector<int64_t> numbers;
    for (const MatMulTile& tile : TilesOf(ShapeOf(2048, 1536, 512, DType::kFloat32), order, threads)) {
      numbers.insert(numbers.end(), {tile.m, tile.n, tile.rows, tile.columns});
    }
    return numbers;
  };
  for (const TileOrder order : {TileOrder::kPlain, TileOrder::kTransposedA}) {
    for (const int threads : kThreads) EXPECT_EQ(places(order, threads), places(order, 1));
  }
}

// oneDNN may sum a matmul that is one tile in another order than its tiles.
TEST(MatMulTilesTest, NoLargeBFloat16MatMulWithATransposedIsOneTile) {
  EXPECT_GE(TilesOf(ShapeOf(512, 512, 1100, DType::kBFloat16), TileOrder::kTransposedA, 1).size(), 2);
  EXPECT_GE(TilesOf(ShapeOf(1408, 1408, 400, DType::kBFloat16), TileOrder::kTransposedA, 1).size(), 2);
}

}  // namespace
}  // namespace shale::cpu
