// Prefetching while something else is computed. A core stalls once about twenty cache lines are in flight, so only a
// few are prefetched at a time.
#pragma once

#include <cstdint>

#include "hwy/cache_control.h"
#include "kernels/integers.h"

namespace shale::cpu {

// Prefetches `count` elements.
template <class T>
inline void PrefetchElements(const T* from, int64_t count) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t i = 0; i < count; i += kLine) hwy::Prefetch(from + i);
}

// RowPrefetch: brings rows of strided tensors into cache. Each row of a head lies on a page of its own, and hardware
// prefetchers do not follow rows across pages.
class RowPrefetch {
 public:
  // Adds `count` rows of `width` elements, which will be read or written. At most kMostPieces calls may have a count
  // above 0.
  template <class T>
  void Add(const T* rows, int64_t stride, int64_t count, int64_t width) {
    if (count <= 0) return;
    constexpr int64_t kBytes = sizeof(T);
    pieces_[pieces_added_++] = {reinterpret_cast<const char*>(rows), stride * kBytes, count, width * kBytes};
    rows_ += count;
  }

  // Spreads the rows that were added over the next `steps` calls of Step. `steps` may be 0 only if the rows have no
  // width; nothing is prefetched then.
  void Spread(int64_t steps) { rows_per_step_ = steps > 0 ? CeilDivide(rows_, steps) : 0; }

  // Prefetches the next few rows, if any are left.
  void Step() {
    for (int64_t n = 0; n < rows_per_step_ && piece_ < pieces_added_; ++n) {
      Piece& piece = pieces_[piece_];
      PrefetchElements(piece.row, piece.row_bytes);
      piece.row += piece.stride_bytes;
      if (--piece.count == 0) ++piece_;
    }
  }

 private:
  static constexpr int kMostPieces = 8;
  struct Piece {
    const char* row;
    int64_t stride_bytes, count, row_bytes;
  };
  Piece pieces_[kMostPieces];
  int pieces_added_ = 0, piece_ = 0;
  int64_t rows_ = 0, rows_per_step_ = 0;
};

}  // namespace shale::cpu
