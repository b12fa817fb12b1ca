// Offline interval packing: chooses an offset for every interval, so that intervals that overlap in time share no byte.
//
// Finding the smallest height is NP-hard. The shape of programs helps: most intervals are short, and the long ones
// either nest (activations that wait for their backward) or overlap like bricks (gathered parameters). PackIntervals
// tries several greedy orders. It improves each order by moving the intervals that reach the top to its front, and
// returns the lowest packing that it finds.
//
// Occupancy: the bytes of the arena that are taken at each time, while a packing is built.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/compile/program/range_set.h"

namespace shale {

// A binary tree over time, which is divided into moments. Its leaves are blocks of a few moments. Every node stores the
// bytes that are taken at any of its moments, and separately the bytes of intervals that cover all of its moments. A
// long interval is stored in only a few nodes, and ranges that are adjacent in memory join into one. Both Take and
// TakenDuring therefore take time about logarithmic in the number of intervals.
class Occupancy {
 public:
  // Moments are numbered [0, moments).
  explicit Occupancy(int32_t moments);

  // Frees all bytes. Keeps the memory that it has, for the next packing.
  void Clear();

  // Marks bytes as taken at moments [first, last].
  void Take(int32_t first, int32_t last, ByteRange bytes);

  // Appends ranges that together contain exactly the bytes taken at any moment in [first, last]. They are not sorted
  // and may overlap.
  void TakenDuring(int32_t first, int32_t last, std::vector<ByteRange>& taken) const;

 private:
  static constexpr int32_t kLeafMoments = 16;
  struct Node {
    RangeSet any;
    RangeSet whole;
  };
  struct Entry {
    int32_t first, last;
    ByteRange bytes;
  };
  // Recursive parts of Take and TakenDuring. `node` covers moments [begin, end).
  void Take(int node, int32_t begin, int32_t end, const Entry& entry);
  void Collect(int node, int32_t begin, int32_t end, int32_t first, int32_t last, std::vector<ByteRange>& taken) const;
  bool IsLeaf(int node) const { return node >= leaves_; }

  int leaves_ = 1;                           // A power of two.
  std::vector<Node> nodes_;                  // The root is 1. The children of n are 2n and 2n + 1.
  std::vector<std::vector<Entry>> in_leaf_;  // By leaf: the intervals that cover only part of it.
};

// Needs `bytes`, a multiple of the alignment, during times [first, last].
struct PackInterval {
  int64_t bytes = 0;
  int32_t first = 0;
  int32_t last = 0;
};

struct PackedIntervals {
  std::vector<int64_t> offsets;  // By interval.
  int64_t height = 0;            // One past the highest byte.
};

// Returns the largest sum of bytes that are live at one time. No packing can be lower. REQUIRES: the sum of all bytes
// fits int64.
int64_t LargestLiveBytes(absl::Span<const PackInterval> intervals);

// Returns a packing. Deterministic. Takes about n log n time for n intervals. REQUIRES: the sum of all bytes fits
// int64.
PackedIntervals PackIntervals(absl::Span<const PackInterval> intervals);

}  // namespace shale
