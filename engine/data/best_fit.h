// Packs items into bins of one size.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace shale {

// Returns the bin of every item. The items' sizes in a bin sum to at most `capacity`. Items are packed from the largest
// to the smallest, among equals in their order, each into the bin with the least room that holds it (Johnson, 1973:
// within 11/9 of the fewest bins). Bins are numbered in the order of their first items. Takes memory and time in
// proportion to the items (times the logarithm of the capacity). REQUIRES: 1 <= sizes[i] <= capacity.
std::vector<int64_t> BestFit(absl::Span<const int32_t> sizes, int32_t capacity);

}  // namespace shale
