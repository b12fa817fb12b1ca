// A set of bytes, kept as few ranges as possible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace shale {

// Bytes [begin, end).
struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const ByteRange&) const = default;
};

// Ranges that touch are joined, so that a range is contained exactly when one of `ranges` contains it. A plain sorted
// vector: the sets of a plan stay at a handful of ranges, however many were added.
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

  // An empty range is contained in every set.
  bool Contains(ByteRange range) const {
    if (range.begin >= range.end) return true;
    const auto it = const_cast<RangeSet*>(this)->FirstEndingAtOrAfter(range.end);
    return it != ranges_.end() && it->begin <= range.begin;
  }

  void clear() { ranges_.clear(); }
  const std::vector<ByteRange>& ranges() const { return ranges_; }  // Ascending, with gaps between them.

 private:
  std::vector<ByteRange>::iterator FirstEndingAtOrAfter(int64_t at) {
    return std::lower_bound(ranges_.begin(), ranges_.end(), at,
                            [](const ByteRange& r, int64_t value) { return r.end < value; });
  }
  std::vector<ByteRange> ranges_;
};

}  // namespace shale
