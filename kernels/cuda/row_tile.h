// Rows on teams of threads, for kernels that read a row whole. Include after portable.h.
//
// [Note: teams] A row is the work of a team of threads, threadIdx.x its members, threadIdx.y the team. A member owns
// packs of 16 bytes, the next pack being the next member's; it asks for all that it owns before it waits for any, and
// keeps them in registers: one pass over memory. A team is a part of a warp, a warp, or several; all teams of a block
// go through the same barriers, so one without a row works on zeros. Who owns what, and with it the order of every sum,
// depends on the width of a row and on the element type, not on alignment: rows that do not begin at 16-byte addresses
// go through the same packs element by element.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/integers.h"

namespace shale::cuda {

// What one thread holds of a row, or of a piece of a row that is too wide to be held at once.
template <class T, int kTeam, int kPacks, bool kAligned>
struct Tile {
  using Element = T;
  static constexpr int kPack = kPackOf<T>;
  static constexpr int kTeamThreads = kTeam;
  static constexpr int kPacksPerThread = kPacks;
  static constexpr int kTeams = std::max(1, 128 / kTeam);  // Of a block.
  static constexpr int kThreads = kTeam * kTeams;
  static constexpr int64_t kWidth = static_cast<int64_t>(kTeam) * kPacks * kPack;

  Pack<T, kPack> at[kPacks];

  // Where pack p of the calling thread begins in the row.
  SHALE_DEVICE static int64_t Column(int64_t tile, int p) {
    return tile + static_cast<int64_t>(p * kTeam + static_cast<int>(threadIdx.x)) * kPack;
  }

  // The tile at column `tile` of the row that begins at `row`. From column `end` on there are zeros.
  SHALE_DEVICE void Load(const Global<T>& from, int64_t row, int64_t tile, int64_t end) {
    SHALE_UNROLL
    for (int p = 0; p < kPacks; ++p) at[p] = LoadPack<kAligned>(from, row, Column(tile, p), end);
  }
  SHALE_DEVICE void Store(const Global<T>& to, int64_t row, int64_t tile, int64_t end) const {
    SHALE_UNROLL
    for (int p = 0; p < kPacks; ++p) StorePack<kAligned>(to, row, Column(tile, p), end, at[p]);
  }
};

inline constexpr int kLargestTeam = 512;

// Calls start with the smallest tile that holds a row of C elements, or with the largest.
template <class T, bool kAligned, class Start>
absl::Status WithTile(int64_t C, const Start& start) {
  const int64_t packs = CeilDivide(C, kPackOf<T>);
  if (packs <= 16) return start(Tile<T, 16, 1, kAligned>());
  if (packs <= 64) return start(Tile<T, 32, 2, kAligned>());
  if (packs <= 128) return start(Tile<T, 64, 2, kAligned>());
  if (packs <= 256) return start(Tile<T, 128, 2, kAligned>());
  if (packs <= 512) return start(Tile<T, 256, 2, kAligned>());
  return start(Tile<T, kLargestTeam, 2, kAligned>());
}

// Calls body(p, i) for every element of a tile.
template <class Tile, class Body>
SHALE_DEVICE void ForEachElement(const Body& body) {
  SHALE_UNROLL
  for (int p = 0; p < Tile::kPacksPerThread; ++p) {
    SHALE_UNROLL
    for (int i = 0; i < Tile::kPack; ++i) body(p, i);
  }
}

// Sums each of `sums` over the threads of a team: the same bits in each. A thread may call it again, with the same
// kPlace, only with another `turn` (0 or 1) than the last time: so no barrier is needed before the next sum.
template <class Tile, int kPlace, int kSums>
SHALE_DEVICE void SumOverTeam(float (&sums)[kSums], int turn) {
  constexpr int kLanes = std::min(kWarpThreads, Tile::kTeamThreads);
  SHALE_UNROLL
  for (int k = 0; k < kSums; ++k) {
    SHALE_UNROLL
    for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) sums[k] += __shfl_xor_sync(kAllLanes, sums[k], lanes);
  }
  if constexpr (Tile::kTeamThreads > kWarpThreads) {
    constexpr int kWarps = Tile::kTeamThreads / kWarpThreads;
    SHALE_SHARED_ARRAY(float, sum_of_warp, 2 * Tile::kTeams * kSums * kWarps);
    const int begin = (turn * Tile::kTeams + static_cast<int>(threadIdx.y)) * kSums * kWarps;
    if (threadIdx.x % kWarpThreads == 0) {
      for (int k = 0; k < kSums; ++k) {
        sum_of_warp.Store(begin + k * kWarps + static_cast<int>(threadIdx.x) / kWarpThreads, sums[k]);
      }
    }
    __syncthreads();
    SHALE_UNROLL
    for (int k = 0; k < kSums; ++k) {
      sums[k] = 0;
      SHALE_UNROLL
      for (int w = 0; w < kWarps; ++w) sums[k] += sum_of_warp.Load(begin + k * kWarps + w);
    }
  }
}

}  // namespace shale::cuda
