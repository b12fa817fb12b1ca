// The scratch that ops need on a GPU. It follows from shapes and dtypes alone, in plain C++: builds without a CUDA
// toolkit plan for GPUs with it.
#pragma once

#include <cstdint>

#include "kernels/cuda/backends.h"
#include "kernels/cuda/work_division.h"
#include "kernels/op.h"
#include "kernels/op_kinds.h"
#include "kernels/ops/float8.h"

namespace shale::cuda {

// Returns the bytes of scratch that the kernel of `op` needs. Kernels without their own overload need none.
template <class OpType>
int64_t ScratchBytesOf(const OpType&) {
  return 0;
}
int64_t ScratchBytesOf(const RmsNormBackward& op);
int64_t ScratchBytesOf(const LayerNormBackward& op);
int64_t ScratchBytesOf(const BiasBackward& op);
int64_t ScratchBytesOf(const EmbeddingBackward& op);
int64_t ScratchBytesOf(const Rope& op);
int64_t ScratchBytesOf(const AttentionBackward& op);
int64_t ScratchBytesOf(const Sum& op);
int64_t ScratchBytesOf(const SumSquares& op);
int64_t ScratchBytesOf(const Adafactor& op);
int64_t ScratchBytesOf(const AbsMax& op);
int64_t ScratchBytesOf(const QuantizeFloat8& op);
int64_t ScratchBytesOf(const QuantizeShard& op);

// Returns the packs that AbsMax compares. Those of a source with gates are packs of the gates, or of their gradients.
PackedRows PacksOfMaximum(const Tensor& x_RC, const Float8Source& source);

// Returns the bytes of the table of a source that rotates x, or 0 for other sources.
int64_t RopeTableBytes(const Tensor& x_RC, const Float8Source& source);

// Returns how many rows Rope's table of cosines and sines has, each of D / 2 elements.
int64_t RopeTableRows(const Rope& op);

// Returns the bytes of scratch that `op` needs if `matmuls` computes matmuls, `attention`, which may be null, what it
// takes (IsByLibrary), and kernels the rest.
int64_t ScratchBytesWith(const MatMulBackend& matmuls, const AttentionBackend* attention, const Op& op);
// Returns the same for Ops::AmpleScratchBytes.
int64_t AmpleScratchBytesWith(const MatMulBackend& matmuls, const AttentionBackend* attention, const Op& op,
                              int64_t most_bytes);

}  // namespace shale::cuda
