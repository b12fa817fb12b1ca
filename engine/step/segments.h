// Which blocks of a model activation checkpointing applies to, and the segments that they form.
#pragma once

#include <cstdint>
#include <vector>

namespace shale {

// Consecutive blocks of a model.
struct Segment {
  int64_t first = 0;  // Index of the first block.
  int64_t blocks = 0;
  bool operator==(const Segment&) const = default;
};

// The blocks that a preset applies to: if first_layers + last_layers > 0, that many at the start and at the end of the
// model, else blocks 0, n, 2n, and so on for n = every_nth.
struct ChosenBlocks {
  int64_t layers = 0;  // Number of blocks in the model.
  int64_t every_nth = 1;
  int64_t first_layers = 0;
  int64_t last_layers = 0;

  bool Includes(int64_t layer) const;
  // Returns the number of chosen blocks in the longest run of consecutive ones. No segment is longer.
  int64_t LongestRun() const;
};

// Divides each run of consecutive chosen blocks into segments of `segment_blocks` blocks; the last one of a run may be
// shorter. A segment keeps one boundary from forward to backward, the input of its first block, and runs forward again
// before its backward (Chen et al., 2016: O(sqrt L) boundaries for L blocks). Returns no segment if segment_blocks is
// 1: each block then keeps its own input, and what the preset keeps.
std::vector<Segment> SegmentsOf(const ChosenBlocks& chosen, int64_t segment_blocks);

// Returns how many boundaries of the chosen blocks a backward holds at most: one for each segment, and those between
// the blocks of one segment. With segment_blocks = 1 that is one for each block.
int64_t BoundariesHeld(const ChosenBlocks& chosen, int64_t segment_blocks);

// Returns the segment_blocks that holds the fewest boundaries: about the square root of the number of chosen blocks,
// and the nearest to it among equals. At least 2. REQUIRES: chosen.LongestRun() >= 2.
int64_t SqrtSegmentBlocks(const ChosenBlocks& chosen);

}  // namespace shale
