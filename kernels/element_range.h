#pragma once

#include <algorithm>
#include <cstdint>

namespace shale {

// A range of elements of a flat vector.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const ElementRange&) const = default;
};

// What both have; where they have nothing in common, an empty range that begins at the later beginning.
constexpr ElementRange Intersect(ElementRange a, ElementRange b) {
  const int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace shale
