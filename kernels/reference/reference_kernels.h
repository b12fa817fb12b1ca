// Declares one function per op, which computes the op on bound tensors. Private to kernels/reference.
#pragma once

#include "absl/status/status.h"
#include "kernels/op_kinds.h"
#include "kernels/reference/adafactor.h"
#include "kernels/reference/scalar_ops.h"

namespace shale::reference {

// embedding.cc
absl::Status Reference(const EmbeddingForward& op);
absl::Status Reference(const EmbeddingBackward& op);
// matmul.cc
absl::Status Reference(const MatMul& op);
// rope.cc
absl::Status Reference(const Rope& op);
// attention.cc
absl::Status Reference(const AttentionForward& op);
absl::Status Reference(const AttentionBackward& op);
// cached_attention.cc
absl::Status Reference(const CachedAttention& op);
// cross_entropy.cc
absl::Status Reference(const CrossEntropy& op);
// squared_error.cc
absl::Status Reference(const SquaredError& op);
// norm.cc
absl::Status Reference(const RmsNormForward& op);
absl::Status Reference(const RmsNormBackward& op);
absl::Status Reference(const LayerNormForward& op);
absl::Status Reference(const LayerNormBackward& op);
// activation.cc
absl::Status Reference(const SwiGluForward& op);
absl::Status Reference(const SwiGluBackward& op);
absl::Status Reference(const GeluForward& op);
absl::Status Reference(const GeluBackward& op);
// elementwise.cc
absl::Status Reference(const BiasBackward& op);
absl::Status Reference(const Sum& op);
absl::Status Reference(const SumSquares& op);
absl::Status Reference(const Copy& op);
absl::Status Reference(const Add& op);
absl::Status Reference(const Accumulate& op);
absl::Status Reference(const ZeroRanges& op);
// nf4.cc
absl::Status Reference(const Nf4Dequantize& op);
// update.cc, which calls a file for each rule
absl::Status Reference(const Update& op);
// The reference and the fast CPU backend share these functions.
inline absl::Status Reference(const LossScale& op) { return RunOnHost(op); }
inline absl::Status Reference(const FlagNonFinite& op) { return RunOnHost(op); }
inline absl::Status Reference(const CombineTotals& op) { return RunOnHost(op); }
inline absl::Status Reference(const PrepareUpdate& op) { return RunOnHost(op); }
inline absl::Status Reference(const RecordNorm& op) { return RunOnHost(op); }
inline absl::Status Reference(const Adafactor& op) { return RunOnHost(op); }

}  // namespace shale::reference
