// Random programs that are correct: every read finds bytes that were written before.
#pragma once

#include <cstdint>

#include "engine/compile/program/program.h"

namespace shale::testing {

struct RandomProgramOptions {
  int instructions = 30;
  int64_t largest_repeat = 6;  // The largest number of iterations. 1: no loop repeats.
  int64_t largest_buffer_bytes = 400;
  bool places_by_rank = true;  // Whether some operands lie at a place that depends on the rank, of two.
};

// Returns a random program without waits. It has four streams, loops that run once and loops that repeat, instructions
// of the last iteration only, accumulation, buffers with slots, held buffers, scratch, strided operands, ranges to
// zero, and transfers to and from host memory.
StepProgram RandomProgram(uint64_t seed, const RandomProgramOptions& options = {});

// Returns a program shaped like a fully sharded training step with thousands of buffers. One loop runs `layers` layers
// forward and backward. Parameters are gathered one layer ahead, activations are kept, and gradients are reduced while
// the next layer runs. Sizes vary a little with `seed`.
StepProgram LayeredProgram(int layers, uint64_t seed);

}  // namespace shale::testing
