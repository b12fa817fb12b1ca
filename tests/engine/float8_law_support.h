// What the laws of fp8 matmuls with one scale for each matrix have in common with those of blockwise scales.
#pragma once

#include <cstdint>

#include "engine/compile/program/program.h"
#include "tests/engine/job_harness.h"

namespace shale::testing {

// Returns how many QuantizeFloat8 of weights a step runs, over all iterations.
int64_t TimesQuantized(const StepProgram& program);

// Expects that steps with the tokens, which are several micro-batches, have the same bits whether weights are quantized
// once a step or where they are used. The model has `blocks` blocks, each with four weights, which are quantized for
// forward and for backward.
void ExpectQuantizingOnceAgrees(RunOptions options, const Tokens& tokens, int64_t blocks);

// Expects that steps have the same bits whether ops that quantize compute matrices themselves (Float8Sources) or read
// them, and that backward keeps no more bytes with sources, and that runs need the memory that was planned. The first
// runs the job as it is, and with segments in LAYERED on two ranks; the second with all presets of activation
// checkpointing, and with patterns in LAYERED on two ranks.
void ExpectSourcesChangeNoBits(RunOptions options, const Tokens& tokens);
void ExpectSourcesChangeNoBitsWithCheckpointing(RunOptions options, const Tokens& tokens);

// Returns the bytes that the ops of a program read and write in one iteration of each loop, matmuls and attention left
// out.
int64_t BytesMoved(const StepProgram& program);

}  // namespace shale::testing
