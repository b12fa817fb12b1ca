// Divides attention into strips, groups and tiles, and lays out its scratch, for the forward and the backward kernel.
//
// A thread computes one item at a time. In the forward kernel an item is one head of a sequence; in the backward kernel
// it is all heads of a sequence that share a key head. The thread takes the item's queries 32 at a time. Their scores
// with all keys form a strip of 32 rows, so memory is linear in S. Keys and values are packed: copied into scratch, in
// the order in which the matmuls read them, just before the first queries that see them are computed. Without a causal
// mask, that is before the first strip. Matmuls skip what the mask hides, in groups of 8 queries and slices of 16 keys.
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
  template <class OpType>
  explicit AttentionSizes(const OpType& op)
      : s(op.q_BSHD.dim(1)), d(op.q_BSHD.dim(3)), window(op.window < s ? op.window : 0), causal(op.causal) {}

  int64_t s, d;
  int64_t window;  // 0 if there is none, or if it hides nothing.
  bool causal;

  int64_t padded_s() const { return RoundUp(s, kTile); }
  int64_t padded_d() const { return RoundUp(d, kTile); }
  // Distance from one row of a strip to the next, in floats. It is never a power of two, which would put all rows into
  // the same cache sets.
  int64_t strip_stride() const { return padded_s() + 16; }
  // Query i sees the keys [FirstKey(i), EndKey(i)). The first query that sees key j is FirstQuery(j).
  int64_t FirstKey(int64_t i) const { return window > 0 ? std::max<int64_t>(0, i - window + 1) : 0; }
  int64_t EndKey(int64_t i) const { return causal ? std::min(i + 1, s) : s; }
  int64_t FirstQuery(int64_t j) const { return causal ? j : 0; }
  // The first key of the tile that holds FirstKey(i). It is column 0 of the strip that begins with query i.
  int64_t Origin(int64_t i) const { return RoundDown(FirstKey(i), kTile); }
  // Calls pack(j, count) for the keys that the strip of queries [i0, i0 + rows) is the first to see, in ranges
  // [j, j + count) of at most `rows` keys. i0 is a multiple of `rows`.
  template <class Pack>
  void ForNewKeys(int64_t i0, int64_t rows, const Pack& pack) const {
    const int64_t end = causal ? std::min(i0 + rows, s) : i0 == 0 ? s : 0;
    for (int64_t j = i0; j < end; j += rows) pack(j, std::min(rows, s - j));
  }
};

// The range of slices that covers the keys that any query of the group sees. The group begins with query i.
struct SliceRange {
  SliceRange(const AttentionSizes& sizes, int64_t i)
      : begin(RoundDown(sizes.FirstKey(i), kSlice)), end(RoundUp(sizes.EndKey(i + kGroup - 1), kSlice)) {}

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
