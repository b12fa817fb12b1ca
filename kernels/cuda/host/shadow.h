// Who touched which bytes of memory, and whether a new access is ordered after those before it.
//
// [Note: what orders accesses] Two accesses of one word, one of them a write, by different threads:
//   of different blocks            never ordered within a launch
//   of one block                   ordered by a __syncthreads() between them (each begins an epoch)
//   of one warp                    also by a __syncwarp() that both threads took part in: vector clocks over the lanes,
//                                  as a mask may name some of them only. Shuffles and votes order no memory.
// Of the readers since the last write the two that matter most are kept (other block, then other warp, then other
// lane). That is exact but for warps whose barriers have partial masks, where another order of threads may be needed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace shale::cuda_on_host {

inline constexpr int kWarp = 32;

// A thread at one moment of its life; thread -1 is nobody.
struct Moment {
  uint32_t block = 0;
  uint32_t epoch = 0;  // Barriers of the block so far.
  uint32_t clock = 0;  // Of the thread itself, advanced by its warp barriers.
  int32_t thread = -1;

  bool someone() const { return thread >= 0; }
  int warp() const { return thread / kWarp; }
};

// clocks[l]: the last moment of lane l of the same warp that this thread comes after.
using LaneClocks = std::array<uint32_t, kWarp>;

// Whether `now`, which comes later in our order of execution, comes after `before` in every order.
bool IsOrdered(const Moment& before, const Moment& now, const LaneClocks& clocks);

// The history of two bytes.
struct Cell {
  Moment write;
  std::array<Moment, 2> reads;
};

// What is wrong with an access.
struct Conflict {
  enum Kind { kNone, kUnwritten, kAfterRead, kAfterWrite } kind = kNone;
  Moment with;
};

// Bytes are told apart in twos, so that threads may write neighbouring bf16.
inline constexpr int kCellBytes = 2;

Conflict Read(Cell& cell, const Moment& now, const LaneClocks& clocks);
Conflict Write(Cell& cell, const Moment& now, const LaneClocks& clocks);

// Cells of any addresses, all untouched at first.
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
