// Rows of strided tensors, brought into cache while something else is being computed. The rows of one head lie on as
// many pages as there are rows, which the processor's own prefetchers do not follow; and a core waits once more than
// about twenty lines are on their way, whence a few rows at a time.
#pragma once

#include <cstdint>

#include "hwy/cache_control.h"
#include "kernels/integers.h"

namespace shale::cpu {

class RowPrefetch {
 public:
  // `count` rows of `width` elements, to be read or written. At most kMostPieces calls with a count above 0.
  template <class T>
  void Add(const T* rows, int64_t stride, int64_t count, int64_t width) {
    if (count <= 0) return;
    constexpr int64_t kBytes = sizeof(T);
    pieces_[pieces_added_++] = {reinterpret_cast<const char*>(rows), stride * kBytes, count, width * kBytes};
    rows_ += count;
  }

  // All rows that were added are to be asked for within `steps` calls of Step, of which rows of no width have none.
  void Spread(int64_t steps) { rows_per_step_ = steps > 0 ? CeilDivide(rows_, steps) : 0; }

  void Step() {
    for (int64_t n = 0; n < rows_per_step_ && piece_ < pieces_added_; ++n) {
      Piece& piece = pieces_[piece_];
      for (int64_t i = 0; i < piece.row_bytes; i += kLine) hwy::Prefetch(piece.row + i);
      piece.row += piece.stride_bytes;
      if (--piece.count == 0) ++piece_;
    }
  }

 private:
  static constexpr int kMostPieces = 8;
  static constexpr int64_t kLine = 64;
  struct Piece {
    const char* row;
    int64_t stride_bytes, count, row_bytes;
  };
  Piece pieces_[kMostPieces];
  int pieces_added_ = 0, piece_ = 0;
  int64_t rows_ = 0, rows_per_step_ = 0;
};

}  // namespace shale::cpu
