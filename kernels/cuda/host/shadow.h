// Shadow memory: which threads accessed which bytes, and whether a new access is ordered after the earlier ones.
//
// [Note: what orders accesses] Two threads access one word, and one of the accesses is a write. If the threads are
//   in different blocks            nothing orders the accesses within a launch
//   in one block                   a __syncthreads() between them does (each begins an epoch)
//   in one warp                    so does a __syncwarp() that both threads took part in. A mask may name some lanes
//                                  only, so vector clocks over the lanes track it. Shuffles and votes order no memory.
// A cell keeps two of the readers since the last write, those that are most likely to conflict with a later write
// (other block, then other warp, then other lane). That is exact except for warps whose barriers have partial masks,
// where a race may show only in another order of threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace shale::cuda_on_host {

inline constexpr int kWarp = 32;

// A thread at one moment of its execution. Thread -1 stands for no thread.
struct Moment {
  uint32_t block = 0;
  uint32_t epoch = 0;  // __syncthreads() of the block so far.
  uint32_t clock = 0;  // The thread's own clock, advanced by its warp barriers.
  int32_t thread = -1;

  bool someone() const { return thread >= 0; }
  int warp() const { return thread / kWarp; }
};

// clocks[l] is the last clock of lane l of the same warp that this thread is ordered after.
using LaneClocks = std::array<uint32_t, kWarp>;

// Returns whether `now`, which comes later in this run, comes after `before` in every order of execution.
bool IsOrdered(const Moment& before, const Moment& now, const LaneClocks& clocks);

// The history of kCellBytes bytes.
struct Cell {
  Moment write;
  std::array<Moment, 2> reads;
};

// What is wrong with an access.
struct Conflict {
  enum Kind { kNone, kUnwritten, kAfterRead, kAfterWrite } kind = kNone;
  Moment with;
};

// Cells are two bytes, so that threads may write neighboring bf16.
inline constexpr int kCellBytes = 2;

// Add an access to the history of a cell, unless it conflicts with an earlier one.
Conflict Read(Cell& cell, const Moment& now, const LaneClocks& clocks);
Conflict Write(Cell& cell, const Moment& now, const LaneClocks& clocks);

// Cells for arbitrary addresses, each without history at first.
class ShadowMemory {
 public:
  Cell& At(uintptr_t address);
  void Clear();

 private:
  static constexpr uintptr_t kPageBytes = 4096;
  struct Page {
    std::array<Cell, kPageBytes / kCellBytes> cells;
  };
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  uintptr_t last_number_ = 0;
  Page* last_ = nullptr;
};

}  // namespace shale::cuda_on_host
