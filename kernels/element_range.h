#pragma once

#include <algorithm>
#include <cstdint>

namespace shale {

// The elements [begin, end) of a flat vector.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const ElementRange&) const = default;
};

// The bytes [begin, end).
struct ByteRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const ByteRange&) const = default;
};

// Returns the elements that lie in both ranges. If there are none, returns an empty range at the larger of the two
// begins.
constexpr ElementRange Intersect(ElementRange a, ElementRange b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace shale
