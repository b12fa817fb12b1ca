// The cosines and sines of Rope, which its kernel reads, and kernels that rotate a matrix where they quantize it.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/scratch.h"
#include "kernels/op_backend.h"
#include "kernels/ops/rope.h"

namespace shale::cuda {

// Both are [RopeTableRows, D / 2]. A row belongs to a position, or, if sequences begin at positions of their own, to a
// token.
struct RopeTable {
  Global<float> cosines, sines;

  // Returns the table of an op in the first ScratchBytesOf(op) bytes of scratch.
  static RopeTable In(Scratch scratch, const Rope& op) {
    const int64_t size = RopeTableRows(op) * (op.x_BSHD.dim(3) / 2);
    float* const data = reinterpret_cast<float*>(scratch.data);
    return {{data, size, "cosines"}, {data + size, size, "sines"}};
  }
};

// rope.cu: enqueues the kernels that fill the table of an op. Ops with the same angles get the same bits.
absl::Status FillRopeTable(const Rope& op, const RopeTable& table, StreamHandle stream);

}  // namespace shale::cuda
