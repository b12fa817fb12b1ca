// Random programs that are right: every read finds bytes that were written before.
#pragma once

#include <cstdint>

#include "engine/program/program.h"

namespace shale::testing {

struct RandomProgramOptions {
  int instructions = 30;
  int64_t largest_repeat = 6;  // Of loops; 1: none repeats.
  int64_t largest_buffer_bytes = 400;
  bool places_by_rank = true;  // Operands whose place depends on the rank, of two.
};

// Four streams, once-loops and loops, instructions of the last iteration only, accumulation, buffers with slots, held
// buffers, scratch, strided operands, ranges to zero, transfers to and from host memory. No waits.
StepProgram RandomProgram(uint64_t seed, const RandomProgramOptions& options = {});

// A program of the shape of a fully sharded training step, by the thousands: `layers` forward and backward again in one
// loop, with gathered parameters one layer ahead, kept activations, workspace, and gradients that are reduced while the
// next layer runs. Sizes vary a little by `seed`.
StepProgram LayeredProgram(int layers, uint64_t seed);

}  // namespace shale::testing
