// The cosines and sines of Rope for kernels that rotate a matrix where they quantize it.
#pragma once

#include <cstdint>

#include "kernels/cpu/team.h"
#include "kernels/op_backend.h"
#include "kernels/ops/rope.h"

namespace shale::cpu {

// rope.cc: fills a table in scratch, and returns it: D / 2 cosines, then D / 2 sines for each position of a sequence,
// with the bits that Rope uses. REQUIRES: the op has no begins
const float* FillRopeTable(const Rope& op, Scratch scratch, Team& team);
// Returns the bytes of scratch that this takes.
int64_t RopeTableBytes(const Rope& op, Team& team);

}  // namespace shale::cpu
