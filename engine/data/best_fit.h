// Packs items into bins of one size.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace shale {

// Returns the bin of every item. The sizes of the items in a bin sum to at most `capacity`. Packs items from the
// largest to the smallest, and items of the same size in their order, each into the bin that has the least room for it
// (Johnson, 1973: at most 11/9 of the fewest bins). Numbers bins in the order of their first items. For n items takes
// O(n) memory and O(n log capacity) time. REQUIRES: 1 <= sizes[i] <= capacity.
std::vector<int64_t> BestFit(absl::Span<const int32_t> sizes, int32_t capacity);

}  // namespace shale
