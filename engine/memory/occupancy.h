// Which bytes of the arena are taken at which times, while a packing is being made.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/program/range_set.h"

namespace shale {

// A binary tree over time whose leaves are blocks of a few moments. Every node keeps the bytes taken at any of its
// moments, and those taken at all of them by what covers it whole. Long intervals touch a few nodes, and neighbours in
// memory join into one range, so that both Take and TakenDuring cost about the logarithm of the number of intervals.
class Occupancy {
 public:
  // Moments are numbered [0, moments).
  explicit Occupancy(int32_t moments);

  // Takes bytes at moments [first, last].
  void Take(int32_t first, int32_t last, ByteRange bytes);

  // Appends ranges that together are all bytes taken at any moment in [first, last]. Not sorted, may overlap.
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
  // Moments [begin, end) of a node.
  void Take(int node, int32_t begin, int32_t end, const Entry& entry);
  void Collect(int node, int32_t begin, int32_t end, int32_t first, int32_t last, std::vector<ByteRange>& taken) const;
  bool IsLeaf(int node) const { return node >= leaves_; }

  int leaves_ = 1;                           // A power of two.
  std::vector<Node> nodes_;                  // The root is 1, the children of n are 2n and 2n + 1.
  std::vector<std::vector<Entry>> in_leaf_;  // By leaf: what covers only part of it.
};

}  // namespace shale
