// Shale's CUDA kernels: a Run function for each op (see kernels/ops/ for formulas and aliasing).
//
// Run enqueues a bound and valid op on `stream` and owns nothing. `scratch` is device memory of ScratchBytesOf(op)
// bytes (scratch.h) with arbitrary contents. Run returns the error of the launch, and where tests run kernels on the
// host (tests/kernels/cuda/host) also errors of the kernel itself. Every sum has an order that depends on shapes alone,
// because no kernel uses atomics. A token or target out of range, which the CPU backend refuses, is never used as an
// address. Such a token gives an embedding row of NaNs and adds to no row of d_weight; such a target gives a loss and a
// gradient of NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/cuda/pack.h"
#include "kernels/cuda/scratch.h"
#include "kernels/cuda/work_division.h"
#include "kernels/op_backend.h"
#include "kernels/op_kinds.h"

namespace shale::cuda {

// norm.cu
absl::Status Run(const RmsNormForward& op, Scratch scratch, StreamHandle stream);
absl::Status Run(const LayerNormForward& op, Scratch scratch, StreamHandle stream);
// norm_backward.cu
absl::Status Run(const RmsNormBackward& op, Scratch scratch, StreamHandle stream);
absl::Status Run(const LayerNormBackward& op, Scratch scratch, StreamHandle stream);
// bias.cu
absl::Status Run(const BiasBackward& op, Scratch scratch, StreamHandle stream);
// embedding.cu
absl::Status Run(const EmbeddingForward& op, Scratch scratch, StreamHandle stream);
absl::Status Run(const EmbeddingBackward& op, Scratch scratch, StreamHandle stream);
// rope.cu
absl::Status Run(const Rope& op, Scratch scratch, StreamHandle stream);
// activation.cu
absl::Status Run(const SwiGluForward& op, Scratch scratch, StreamHandle stream);
absl::Status Run(const SwiGluBackward& op, Scratch scratch, StreamHandle stream);
// attention.cu, attention_backward.cu. Run returns InvalidArgument for heads wider than 256.
absl::Status Run(const AttentionForward& op, Scratch scratch, StreamHandle stream);
absl::Status Run(const AttentionBackward& op, Scratch scratch, StreamHandle stream);
// cached_attention.cu. Run returns InvalidArgument for heads wider than 256.
absl::Status Run(const CachedAttention& op, Scratch scratch, StreamHandle stream);
// cross_entropy.cu
absl::Status Run(const CrossEntropy& op, Scratch scratch, StreamHandle stream);
// squared_error.cu
absl::Status Run(const SquaredError& op, Scratch scratch, StreamHandle stream);
// gelu.cu
absl::Status Run(const GeluForward& op, Scratch scratch, StreamHandle stream);
absl::Status Run(const GeluBackward& op, Scratch scratch, StreamHandle stream);
// elementwise.cu
absl::Status Run(const Copy& op, Scratch scratch, StreamHandle stream);
absl::Status Run(const Add& op, Scratch scratch, StreamHandle stream);
absl::Status Run(const Accumulate& op, Scratch scratch, StreamHandle stream);
absl::Status Run(const ZeroRanges& op, Scratch scratch, StreamHandle stream);
// reductions.cu
absl::Status Run(const Sum& op, Scratch scratch, StreamHandle stream);
absl::Status Run(const SumSquares& op, Scratch scratch, StreamHandle stream);
// nf4.cu
absl::Status Run(const Nf4Dequantize& op, Scratch scratch, StreamHandle stream);
// update.cu, which calls a file for each rule
absl::Status Run(const Update& op, Scratch scratch, StreamHandle stream);
// adafactor.cu
absl::Status Run(const Adafactor& op, Scratch scratch, StreamHandle stream);
// scalar_ops.cu
absl::Status Run(const LossScale& op, Scratch scratch, StreamHandle stream);
absl::Status Run(const FlagNonFinite& op, Scratch scratch, StreamHandle stream);
absl::Status Run(const CombineTotals& op, Scratch scratch, StreamHandle stream);
absl::Status Run(const PrepareUpdate& op, Scratch scratch, StreamHandle stream);
absl::Status Run(const RecordNorm& op, Scratch scratch, StreamHandle stream);

// broadcast_bias.cu: sets c[m, n] = bias[n]. bias and c have the shapes and dtypes of a valid MatMul; rows of c may be
// strided.
absl::Status BroadcastBias(const Tensor& bias_N, const Tensor& c_MN, StreamHandle stream);

// sum_ranks.cu: sets out[i] = (inputs[0][i] + inputs[1][i]) + inputs[2][i] + ..., in the element type: f32, f64 or i64
// (which wraps). `out` may be one of the inputs; otherwise it must overlap none. Returns InvalidArgument for other
// dtypes, and unless there are 1 to kMostSummedRanks inputs.
absl::Status SumRanks(DType dtype, absl::Span<const std::byte* const> inputs, std::byte* out, int64_t elements,
                      StreamHandle stream);

}  // namespace shale::cuda
