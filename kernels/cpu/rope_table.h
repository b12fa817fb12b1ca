// The cosines and sines of Rope for kernels that rotate a matrix where they quantize it, and that matrix.
#pragma once

#include <cstdint>

#include "kernels/cpu/team.h"
#include "kernels/op_backend.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/rope.h"

namespace shale::cpu {

// rope.cc: fills a table in scratch, and returns it: D / 2 cosines, then D / 2 sines for each position of a sequence,
// with the bits that Rope uses. REQUIRES: the op has no begins
const float* FillRopeTable(const Rope& op, Scratch scratch, Team& team);
// Returns the bytes of scratch that this takes.
int64_t RopeTableBytes(const Rope& op, Team& team);

// A matrix that an op quantizes ([Note: sources of fp8]).
struct SourceMatrix {
  const Tensor& x_RC;
  const Float8Source& source;
  const float* turns = nullptr;  // The table of kRope (rope_table.h).
  bool computes() const { return source.kind != Float8Source::Kind::kMatrix; }
};

}  // namespace shale::cpu
