// Offline interval packing: chooses an offset for every interval, so that intervals that overlap in time share no byte.
//
// Finding the smallest height is NP-hard. The shape of programs helps: most intervals are short, and the long ones
// either nest (activations that wait for their backward) or overlap like bricks (gathered parameters). PackIntervals
// tries several greedy orders. It improves each order by moving the intervals that reach the top to its front, and
// returns the lowest packing that it finds.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace shale {

// Needs `bytes`, a multiple of the alignment, during times [first, last].
struct PackInterval {
  int64_t bytes = 0;
  int32_t first = 0;
  int32_t last = 0;
};

struct Packing {
  std::vector<int64_t> offsets;  // By interval.
  int64_t height = 0;            // One past the highest byte.
};

// Returns the largest sum of bytes that are live at one time. No packing can be lower. REQUIRES: the sum of all bytes
// fits int64.
int64_t LargestLiveBytes(absl::Span<const PackInterval> intervals);

// Returns a packing. Deterministic. Takes about n log n time for n intervals. REQUIRES: the sum of all bytes fits
// int64.
Packing PackIntervals(absl::Span<const PackInterval> intervals);

}  // namespace shale
