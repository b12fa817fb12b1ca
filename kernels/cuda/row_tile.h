// Teams of threads that own rows, for kernels that hold a full row in registers.
//
// [Note: teams] A team of threads works on one row: threadIdx.y is the team, threadIdx.x the member. A member owns
// packs of 16 bytes; adjacent packs belong to adjacent members. It requests all of its packs before it waits for any,
// and keeps them in registers, so that memory is read once. A team is part of a warp, one warp, or several warps. All
// teams of a block go through the same barriers, so a team without a row works on zeros. Ownership, and so the order of
// every sum, depends on the row's width and element type, not on alignment: a row that does not begin at a 16-byte
// address is divided into the same packs, and accessed element by element.
//
// A member that owns four packs sums packs 0 and 2 apart from packs 1 and 3, as if each of these halves belonged to
// a member of a team of twice as many threads with two packs each. So a sum has one order whichever of the two teams
// works on a row.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/operands.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/work_division.h"
#include "kernels/integers.h"

namespace shale::cuda {

// The elements that one thread owns of a row, or of kWidth columns of a row that is too wide for the team to hold at
// once. kPlace is the team's place in kRowTeams.
template <class T, int kPlace, bool kAligned>
struct Tile {
  using Element = T;
  static constexpr int kPack = kPackOf<T>;
  static constexpr RowTeam kRowTeam = kRowTeams[kPlace];
  static constexpr bool kLargest = kPlace == kLargestTeam;
  static constexpr bool kWholePacks = kAligned;  // One instruction accesses a pack.
  static constexpr int kTeamThreads = kRowTeam.threads;
  static constexpr int kPacksPerThread = kRowTeam.packs;
  static constexpr int kHalves = kPacksPerThread == 4 ? 2 : 1;
  static constexpr int kTeams = kRowTeam.teams;  // Per block.
  static constexpr int kThreads = kRowTeam.block_threads();
  static constexpr int64_t kWidth = kRowTeam.row_packs() * kPack;

  Pack<T, kPack> at[kPacksPerThread];

  // Returns the column where pack p of the calling thread begins.
  SHALE_DEVICE static int64_t Column(int64_t tile, int p) {
    return tile + static_cast<int64_t>(p * kTeamThreads + static_cast<int>(threadIdx.x)) * kPack;
  }

  // Load and store the tile at column `tile` of the row that begins at offset `row`. Load gives zeros from column `end`
  // on; Store leaves these columns alone.
  SHALE_DEVICE void Load(const Global<T>& from, int64_t row, int64_t tile, int64_t end) {
    SHALE_UNROLL
    for (int p = 0; p < kPacksPerThread; ++p) at[p] = LoadPack<kAligned>(from, row, Column(tile, p), end);
  }
  SHALE_DEVICE void Store(const Global<T>& to, int64_t row, int64_t tile, int64_t end) const {
    SHALE_UNROLL
    for (int p = 0; p < kPacksPerThread; ++p) StorePack<kAligned>(to, row, Column(tile, p), end, at[p]);
  }
};

// Calls start with the tile of the smallest team that holds a row of C elements, or of the largest team if none does.
template <class T, bool kAligned, class Start>
absl::Status WithTile(int64_t C, const Start& start) {
  static_assert(kLargestTeam == 5);
  switch (TeamOf(CeilDivide(C, kPackOf<T>))) {
    case 0: return start(Tile<T, 0, kAligned>());
    case 1: return start(Tile<T, 1, kAligned>());
    case 2: return start(Tile<T, 2, kAligned>());
    case 3: return start(Tile<T, 3, kAligned>());
    case 4: return start(Tile<T, 4, kAligned>());
    default: return start(Tile<T, 5, kAligned>());
  }
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

// Sums of the calling thread over the packs of a tile: of[k][h] is the k-th sum over half h of the packs.
template <class Tile, int kSums>
struct HalfSums {
  float of[kSums][Tile::kHalves] = {};

  // Returns the k-th sum to which pack p is added.
  SHALE_DEVICE float& Of(int k, int p) { return of[k][p % Tile::kHalves]; }
};

// Sums over the threads of a team, and over halves. Every thread gets the same bits. All threads of the block must call
// it. Successive calls with the same kPlace must alternate `turn` between 0 and 1: they then use separate shared
// memory, and no barrier is needed between them.
template <class Tile, int kPlace, int kSums>
SHALE_DEVICE void SumOverTeam(HalfSums<Tile, kSums>& halves, float (&sums)[kSums], int turn) {
  constexpr int kLanes = std::min(kWarpThreads, Tile::kTeamThreads), kHalves = Tile::kHalves;
  SHALE_UNROLL
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    SHALE_UNROLL
    for (int k = 0; k < kSums; ++k) {
      SHALE_UNROLL
      for (int h = 0; h < kHalves; ++h) halves.of[k][h] += __shfl_xor_sync(kAllLanes, halves.of[k][h], lanes);
    }
  }
  if constexpr (Tile::kTeamThreads > kWarpThreads) {
    constexpr int kWarps = Tile::kTeamThreads / kWarpThreads, kParts = kHalves * kWarps;
    SHALE_SHARED_ARRAY(float, sum_of_warp, 2 * Tile::kTeams * kSums * kParts);
    const int begin = (turn * Tile::kTeams + static_cast<int>(threadIdx.y)) * kSums * kParts;
    if (threadIdx.x % kWarpThreads == 0) {
      SHALE_UNROLL
      for (int k = 0; k < kSums; ++k) {
        SHALE_UNROLL
        for (int h = 0; h < kHalves; ++h) {
          sum_of_warp.Store(begin + k * kParts + h * kWarps + static_cast<int>(threadIdx.x) / kWarpThreads,
                            halves.of[k][h]);
        }
      }
    }
    __syncthreads();
    SHALE_UNROLL
    for (int k = 0; k < kSums; ++k) {
      sums[k] = 0;
      SHALE_UNROLL
      for (int part = 0; part < kParts; ++part) sums[k] += sum_of_warp.Load(begin + k * kParts + part);
    }
  } else {
    SHALE_UNROLL
    for (int k = 0; k < kSums; ++k) {
      // As the sum over two warps, which begins at 0.
      sums[k] = kHalves > 1 ? 0.0f + halves.of[k][0] : halves.of[k][0];
      SHALE_UNROLL
      for (int h = 1; h < kHalves; ++h) sums[k] += halves.of[k][h];
    }
  }
}

}  // namespace shale::cuda
