#pragma once

#include <cstdint>

namespace shale {

// A range of elements of a flat vector.
struct ElementRange {
  int64_t begin = 0;
  int64_t end = 0;
  bool operator==(const ElementRange&) const = default;
};

}  // namespace shale
