// Offline interval packing: an offset for every interval, so that intervals that meet in time share no byte.
//
// Finding the least height is NP-hard. What programs look like helps: most intervals are short, the long ones nest
// (activations wait for their backward) or overlap like bricks (gathered parameters). Several greedy orders are tried,
// and the one that came lowest is improved by moving to its front what stood out at the top.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace shale {

// `bytes` (a multiple of the alignment) during times [first, last].
struct PackInterval {
  int64_t bytes = 0;
  int32_t first = 0;
  int32_t last = 0;
};

struct Packing {
  std::vector<int64_t> offsets;  // By interval.
  int64_t height = 0;            // One past the highest byte.
};

// The largest sum of bytes at one time: no packing is lower. REQUIRES: the sum of all bytes fits int64.
int64_t LargestLiveBytes(absl::Span<const PackInterval> intervals);

// Deterministic; takes about n log n time, n intervals. REQUIRES: as above.
Packing PackIntervals(absl::Span<const PackInterval> intervals);

}  // namespace shale
