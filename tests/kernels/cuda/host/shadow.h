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
  // `epoch` grows by one at the start of each block, as blocks and launches run one after the other, and at each
  // __syncthreads(). The first one is 1.
  Moment(uint32_t epoch, uint32_t clock, int thread)
      : bits_(uint64_t{epoch} << 32 | uint64_t{clock} << kThreadBits | static_cast<uint64_t>(thread)) {}

  // Stands for an asynchronous copy of `thread` that has not finished. No access is ordered after it.
  static Moment OfCopy(int thread) { return {kCopyEpoch, 0, thread}; }
  bool is_copy() const { return epoch() == kCopyEpoch; }

  uint32_t epoch() const { return static_cast<uint32_t>(bits_ >> 32); }
  uint32_t clock() const { return static_cast<uint32_t>(bits_) >> kThreadBits; }
  int thread() const { return static_cast<int>(bits_ & ((1u << kThreadBits) - 1)); }
  int warp() const { return thread() / kWarp; }
  bool operator==(const Moment&) const = default;

 private:
  static constexpr uint32_t kCopyEpoch = 0xffffffffu;  // Comes after all others.

  uint64_t bits_ = 0;
};

// clocks[l] is the last clock of lane l of the same warp that this thread is ordered after.
using LaneClocks = std::array<uint32_t, kWarp>;

// The thread that accesses memory.
struct Accessor {
  Moment now;
  uint32_t since = 1;        // Accesses of earlier epochs are forgotten: cells need not be cleared.
  uint32_t first_epoch = 1;  // Of its block.
  const LaneClocks* clocks = nullptr;
};

// The history of kCellBytes bytes.
struct Cell {
  Moment write;
  std::array<Moment, 2> reads;
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
// Sets the last write of `count` adjacent cells. REQUIRES: nobody has read them since the write before it.
void SetWrite(Cell* cells, int64_t count, Moment write);

// Cells for arbitrary addresses. A cell has no history at first.
class ShadowMemory {
 public:
  static constexpr uintptr_t kPageBytes = 1024;

  // Returns the cell of `address`. The cells of the rest of the page follow it in memory.
  Cell* At(uintptr_t address) {
    const uintptr_t number = address / kPageBytes;
    Recent& recent = recent_[number % kRecent];
    if (recent.page == nullptr || recent.number != number) recent = {number, PageOf(number)};
    return &recent.page->cells[address % kPageBytes / kCellBytes];
  }
  // Clears all cells.
  void Clear();
  // Called when all histories are forgotten: clears the cells only if they take much memory.
  void Trim();

 private:
  static constexpr size_t kRecent = 256;
  struct Page {
    std::array<Cell, kPageBytes / kCellBytes> cells;
  };
  struct Recent {
    uintptr_t number = 0;
    Page* page = nullptr;
  };

  Page* PageOf(uintptr_t number);

  std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages_;
  std::array<Recent, kRecent> recent_ = {};  // The page found last among those whose numbers have the same remainder.
};

}  // namespace shale::cuda_on_host
