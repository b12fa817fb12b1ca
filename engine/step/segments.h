// ChosenBlocks: the blocks of a model that activation checkpointing applies to. Segment: some of them in a row that
// keep one boundary together.
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

// The blocks that a preset applies to. If first_layers + last_layers > 0, these are the first `first_layers` and the
// last `last_layers` blocks of the model. Otherwise they are blocks 0, n, 2n, and so on for n = every_nth.
struct ChosenBlocks {
  int64_t layers = 0;  // Number of blocks in the model.
  int64_t every_nth = 1;
  int64_t first_layers = 0;
  int64_t last_layers = 0;

  bool Includes(int64_t layer) const;
  // Returns the number of blocks in the longest run of consecutive chosen blocks. No segment is longer.
  int64_t LongestRun() const;
};

// Divides each run of consecutive chosen blocks into segments of `segment_blocks` blocks. The last segment of a run may
// be shorter. A segment keeps one boundary from forward to backward, the input of its first block, and its blocks but
// the last run forward again before its backward (Chen et al., 2016: O(sqrt L) boundaries for L blocks). Returns no
// segments if segment_blocks is 1: each block then keeps its own input and what the preset keeps.
std::vector<Segment> SegmentsOf(const ChosenBlocks& chosen, int64_t segment_blocks);

// Returns how many boundaries of chosen blocks are held at most at once: one for each segment, and those between the
// blocks of the longest segment. If segment_blocks is 1, this is one for each chosen block.
int64_t BoundariesHeld(const ChosenBlocks& chosen, int64_t segment_blocks);

// Returns the segment_blocks, at least 2, with the smallest BoundariesHeld. It is about the square root of the number
// of chosen blocks; among equals, the value nearest to that root is taken. REQUIRES: chosen.LongestRun() >= 2.
int64_t SqrtSegmentBlocks(const ChosenBlocks& chosen);

}  // namespace shale
