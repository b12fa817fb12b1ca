// Declares one Run function per op, which computes the op on bound tensors, and the scratch that it needs. Private to
// kernels/cpu.
//
// Kernels allocate nothing on the heap, except inside oneDNN (see onednn_matmuls.h). Partial sums live in `scratch`,
// whose size ScratchBytesOf returns. The division of a sum into parts never depends on the number of threads.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "kernels/cpu_matmuls.h"
#include "kernels/op_backend.h"
#include "kernels/op_kinds.h"
#include "kernels/reference/scalar_ops.h"

namespace shale::cpu {

class OneDnnMatMuls;  // Matmuls by oneDNN; see onednn_matmuls.h.
class Team;           // See team.h.

// Settings and caches that the kernels of one CpuOps share. Kernels on several streams read it at the same time.
struct Context {
  std::shared_ptr<Team> team;
  CpuMatMuls products = CpuMatMuls::kOneDnn;
  std::shared_ptr<OneDnnMatMuls> matmuls;
};

// Returns the bytes of scratch that `op` needs. Ops without an overload of their own need none.
template <class OpType>
int64_t ScratchBytesOf(const OpType&, const Context&) {
  return 0;
}
int64_t ScratchBytesOf(const MatMul& op, const Context& context);
int64_t ScratchBytesOf(const AttentionForward& op, const Context& context);
int64_t ScratchBytesOf(const AttentionBackward& op, const Context& context);
int64_t ScratchBytesOf(const CachedAttention& op, const Context& context);
int64_t ScratchBytesOf(const Rope& op, const Context& context);
int64_t ScratchBytesOf(const CrossEntropy& op, const Context& context);
int64_t ScratchBytesOf(const RmsNormBackward& op, const Context& context);
int64_t ScratchBytesOf(const LayerNormBackward& op, const Context& context);
int64_t ScratchBytesOf(const BiasBackward& op, const Context& context);
int64_t ScratchBytesOf(const Sum& op, const Context& context);
int64_t ScratchBytesOf(const SumSquares& op, const Context& context);
int64_t ScratchBytesOf(const Adafactor& op, const Context& context);

// Returns the sum of x^2 in fp64, with the same bits for every instruction set (elementwise.cc).
double SumOfSquares(const float* x, int64_t count);

// Implements Ops::PackedBytes.
int64_t PackedBytesOf(const MatMul& op, const Context& context);

// Does the slow work that is needed once per shape. Ops without an overload of their own have no such work.
template <class OpType>
absl::Status PrepareOp(const OpType&, const Context&) {
  return absl::OkStatus();
}
absl::Status PrepareOp(const MatMul& op, const Context& context);

// embedding.cc, matmul.cc, rope.cc, attention_forward.cc, attention_backward.cc, cross_entropy.cc
absl::Status Run(const EmbeddingForward& op, Scratch scratch, const Context& context);
absl::Status Run(const EmbeddingBackward& op, Scratch scratch, const Context& context);
absl::Status Run(const MatMul& op, Scratch scratch, const Context& context);
absl::Status Run(const Rope& op, Scratch scratch, const Context& context);
absl::Status Run(const AttentionForward& op, Scratch scratch, const Context& context);
absl::Status Run(const AttentionBackward& op, Scratch scratch, const Context& context);
absl::Status Run(const CrossEntropy& op, Scratch scratch, const Context& context);
// cached_attention.cc
absl::Status Run(const CachedAttention& op, Scratch scratch, const Context& context);
// squared_error.cc
absl::Status Run(const SquaredError& op, Scratch scratch, const Context& context);
// norm.cc
absl::Status Run(const RmsNormForward& op, Scratch scratch, const Context& context);
absl::Status Run(const RmsNormBackward& op, Scratch scratch, const Context& context);
absl::Status Run(const LayerNormForward& op, Scratch scratch, const Context& context);
absl::Status Run(const LayerNormBackward& op, Scratch scratch, const Context& context);
// activation.cc
absl::Status Run(const SwiGluForward& op, Scratch scratch, const Context& context);
absl::Status Run(const SwiGluBackward& op, Scratch scratch, const Context& context);
absl::Status Run(const GeluForward& op, Scratch scratch, const Context& context);
absl::Status Run(const GeluBackward& op, Scratch scratch, const Context& context);
// columns.cc (BiasBackward), elementwise.cc
absl::Status Run(const BiasBackward& op, Scratch scratch, const Context& context);
absl::Status Run(const Sum& op, Scratch scratch, const Context& context);
absl::Status Run(const SumSquares& op, Scratch scratch, const Context& context);
absl::Status Run(const Copy& op, Scratch scratch, const Context& context);
absl::Status Run(const Add& op, Scratch scratch, const Context& context);
absl::Status Run(const Accumulate& op, Scratch scratch, const Context& context);
absl::Status Run(const ZeroRanges& op, Scratch scratch, const Context& context);
// nf4.cc
absl::Status Run(const Nf4Dequantize& op, Scratch scratch, const Context& context);
// update_adafactor.cc
absl::Status Run(const Adafactor& op, Scratch scratch, const Context& context);
// update.cc, which calls a file for each rule
absl::Status Run(const Update& op, Scratch scratch, const Context& context);
// Ops on a few scalars, whose code the reference shares.
inline absl::Status Run(const LossScale& op, Scratch, const Context&) { return RunOnHost(op); }
inline absl::Status Run(const FlagNonFinite& op, Scratch, const Context&) { return RunOnHost(op); }
inline absl::Status Run(const CombineTotals& op, Scratch, const Context&) { return RunOnHost(op); }
inline absl::Status Run(const PrepareUpdate& op, Scratch, const Context&) { return RunOnHost(op); }
inline absl::Status Run(const RecordNorm& op, Scratch, const Context&) { return RunOnHost(op); }

}  // namespace shale::cpu
