// A set of bytes, stored as the fewest possible ranges.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "kernels/element_range.h"

namespace shale {

// Ranges that touch are joined, so a range is in the set exactly when one of `ranges` contains it. The ranges are
// stored in a sorted vector: in a plan a set has only a handful of ranges, no matter how many were added. Most sets
// have one range, which needs no allocation.
class RangeSet {
 public:
  void Add(ByteRange range) {
    if (range.begin >= range.end) return;
    auto first = FirstEndingAtOrAfter(range.begin);
    auto last = first;
    while (last != ranges_.end() && last->begin <= range.end) {
      range.begin = std::min(range.begin, last->begin);
      range.end = std::max(range.end, last->end);
      ++last;
    }
    if (first == last) {
      ranges_.insert(first, range);
      return;
    }
    *first = range;
    ranges_.erase(first + 1, last);
  }

  // Returns whether all bytes of `range` are in the set. Every set contains the empty range.
  bool Contains(ByteRange range) const {
    if (range.begin >= range.end) return true;
    const auto it = const_cast<RangeSet*>(this)->FirstEndingAtOrAfter(range.end);
    return it != ranges_.end() && it->begin <= range.begin;
  }

  void clear() { ranges_.clear(); }
  absl::Span<const ByteRange> ranges() const { return ranges_; }  // Ascending, with gaps between them.

 private:
  using Ranges = absl::InlinedVector<ByteRange, 1>;

  Ranges::iterator FirstEndingAtOrAfter(int64_t at) {
    return std::lower_bound(ranges_.begin(), ranges_.end(), at,
                            [](const ByteRange& r, int64_t value) { return r.end < value; });
  }
  Ranges ranges_;
};

}  // namespace shale
