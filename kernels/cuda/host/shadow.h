// Shadow memory: records which threads accessed which bytes, and tells whether a new access is ordered after the
// earlier ones.
//
// [Note: what orders accesses] Two threads access one word, and one of the accesses is a write. If the threads are
//   in different blocks            nothing orders the accesses within a launch
//   in one block                   a __syncthreads() between them does (each begins an epoch, as does each block)
//   in one warp                    so does a __syncwarp() that both threads took part in. A mask may name some lanes
//                                  only, so vector clocks over the lanes track it. Shuffles and votes order no memory.
// A cell keeps two of the readers since the last write: those that are most likely to conflict with a later write
// (other block, then other warp, then other lane). This finds every race, except in warps whose barriers have partial
// masks, where a race may show only in another order of threads.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace shale::cuda_on_host {

inline constexpr int kWarp = 32;

// A thread at one moment of its execution. It takes only eight bytes, because shadow memory keeps three Moments for
// every two bytes that a kernel accesses. A default Moment stands for no thread.
class Moment {
 public:
  // A thread's clock counts its warp barriers in a block.
  static constexpr int kThreadBits = 10, kClockBits = 22;
  static constexpr uint32_t kMaxClock = (1u << kClockBits) - 1;

  Moment() = default;
  // `epoch` is 1 in the first block of a launch. It grows by one at each __syncthreads() and at the start of each
  // further block, as blocks run one after the other.
  Moment(uint32_t epoch, uint32_t clock, int thread)
      : bits_(uint64_t{epoch} << 32 | uint64_t{clock} << kThreadBits | static_cast<uint64_t>(thread)) {}

  bool someone() const { return bits_ != 0; }
  uint32_t epoch() const { return static_cast<uint32_t>(bits_ >> 32); }
  uint32_t clock() const { return static_cast<uint32_t>(bits_) >> kThreadBits; }
  int thread() const { return static_cast<int>(bits_ & ((1u << kThreadBits) - 1)); }
  int warp() const { return thread() / kWarp; }
  bool operator==(const Moment&) const = default;

 private:
  uint64_t bits_ = 0;
};

// clocks[l] is the last clock of lane l of the same warp that this thread is ordered after.
using LaneClocks = std::array<uint32_t, kWarp>;

// The thread that accesses memory.
struct Accessor {
  Moment now;
  uint32_t first_epoch;  // Of its block.
  const LaneClocks& clocks;
};

// Returns whether `by`, which comes later in this run, comes after `before` in every order of execution.
bool IsOrdered(const Moment& before, const Accessor& by);

// The history of kCellBytes bytes.
struct Cell {
  Moment write;
  std::array<Moment, 2> reads;
  bool operator==(const Cell&) const = default;
};

// Says what is wrong with an access, and which earlier access it conflicts with.
struct Conflict {
  enum Kind { kNone, kUnwritten, kAfterRead, kAfterWrite } kind = kNone;
  Moment with;
};

// Cells are two bytes, so that threads may write neighboring bf16.
inline constexpr int kCellBytes = 2;

// Read and Write add an access to the history of `count` adjacent cells, up to the first cell with a conflict, which
// they return. If `written` is set, a cell that was never written is a conflict too.
Conflict Read(Cell* cells, int64_t count, const Accessor& by, bool written);
Conflict Write(Cell* cells, int64_t count, const Accessor& by);

// Cells for arbitrary addresses. A cell has no history at first.
class ShadowMemory {
 public:
  static constexpr uintptr_t kPageBytes = 4096;

  // Returns the cell of `address`. The cells of the rest of the page follow it in memory.
  Cell* At(uintptr_t address);
  void Clear();

 private:
  struct Page {
    std::array<Cell, kPageBytes / kCellBytes> cells;
  };
  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  std::vector<std::unique_ptr<Page>> unused_;  // Kept from earlier launches.
  uintptr_t last_number_ = 0;
  Page* last_ = nullptr;
};

}  // namespace shale::cuda_on_host
