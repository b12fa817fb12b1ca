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

// Each stands in the source with the name of the op or of its family. MatMul has none, because a library computes it.
// Run of attention returns InvalidArgument for heads wider than 256.
#define SHALE_DECLARE(Kind) absl::Status Run(const Kind& op, Scratch scratch, StreamHandle stream);
SHALE_EACH_OP_KIND(SHALE_DECLARE)
#undef SHALE_DECLARE

// broadcast_bias.cu: sets c[m, n] = bias[n]. bias and c have the shapes and dtypes of a valid MatMul; rows of c may be
// strided.
absl::Status BroadcastBias(const Tensor& bias_N, const Tensor& c_MN, StreamHandle stream);

// sum_ranks.cu: sets out[i] = (inputs[0][i] + inputs[1][i]) + inputs[2][i] + ..., in the element type: f32, f64 or i64
// (which wraps). `out` may be one of the inputs; otherwise it must overlap none. Returns InvalidArgument for other
// dtypes, and unless there are 1 to kMostSummedRanks inputs.
absl::Status SumRanks(DType dtype, absl::Span<const std::byte* const> inputs, std::byte* out, int64_t elements,
                      StreamHandle stream);

}  // namespace shale::cuda
