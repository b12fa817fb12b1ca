// Divides attention into strips, groups and tiles, and lays out its scratch, for the forward and the backward kernel.
//
// A thread computes one item at a time. In the forward kernel an item is one head of a sequence; in the backward kernel
// it is all heads of a sequence that share a key head. The thread takes the item's queries 32 at a time. Their scores
// with all keys form a strip of 32 rows, so memory is linear in S. Keys and values are copied into scratch, in the
// order in which the matmuls read them, just before the first queries that see them are computed. Matmuls skip what the
// mask hides, in groups of 8 queries and slices of 16 keys.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/integers.h"
#include "kernels/tensor.h"

namespace shale::cpu {

inline constexpr int64_t kQueries = 32;  // Rows of a strip.
inline constexpr int64_t kGroup = 8;     // Rows of one matmul.
inline constexpr int64_t kTile = 32;     // Columns of one matmul.
inline constexpr int64_t kSlice = 16;    // Half a tile: a multiple of a group and of every vector.

struct AttentionSizes {
  AttentionSizes(const Tensor& q_BSHD, int64_t window)
      : s(q_BSHD.dim(1)), d(q_BSHD.dim(3)), window(window < s ? window : 0) {}

  int64_t s, d;
  int64_t window;  // 0 if there is none, or if it hides nothing.

  int64_t padded_s() const { return RoundUp(s, kTile); }
  int64_t padded_d() const { return RoundUp(d, kTile); }
  // Distance from one row of a strip to the next, in floats. It is never a power of two, which would put all rows into
  // the same cache sets.
  int64_t strip_stride() const { return padded_s() + 16; }
  // The first key that query i sees. The last one is key i.
  int64_t FirstKey(int64_t i) const { return window > 0 ? std::max<int64_t>(0, i - window + 1) : 0; }
  // The first key of the tile that holds FirstKey(i). It is column 0 of the strip that begins with query i.
  int64_t Origin(int64_t i) const { return RoundDown(FirstKey(i), kTile); }
};

// The range of slices that covers the keys that any query of the group sees. The group begins with query i.
struct SliceRange {
  SliceRange(const AttentionSizes& sizes, int64_t i)
      : begin(RoundDown(sizes.FirstKey(i), kSlice)), end(RoundUp(std::min(i + kGroup, sizes.s), kSlice)) {}

  int64_t begin, end;
};

// Carves arrays of floats out of scratch, each aligned to 64 bytes. If `data` is null, it only counts bytes.
class Carver {
 public:
  explicit Carver(std::byte* data) : data_(reinterpret_cast<float*>(data)) {}
  float* Take(int64_t floats) {
    float* taken = data_ == nullptr ? nullptr : data_ + taken_;
    taken_ += RoundUp(floats, 16);
    return taken;
  }
  // Total size of the arrays, rounded up to a multiple of 256.
  int64_t size_bytes() const { return RoundUp(taken_ * static_cast<int64_t>(sizeof(float)), 256); }

 private:
  float* data_;
  int64_t taken_ = 0;
};

}  // namespace shale::cpu
