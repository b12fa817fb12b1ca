// Declares one Run function per op, which computes the op on bound tensors, and the scratch that it needs. Each stands
// in a source of kernels/cpu with the name of the op or of its family. Private to kernels/cpu.
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
  CpuMatMuls cpu_matmuls = CpuMatMuls::kOneDnn;
  std::shared_ptr<OneDnnMatMuls> onednn;
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
int64_t ScratchBytesOf(const AbsMax& op, const Context& context);
int64_t ScratchBytesOf(const QuantizeFloat8& op, const Context& context);
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

// Computes an op. Those for which there is a RunOnHost (kernels/reference/scalar_ops.h) are computed by that, and have
// no Run.
#define SHALE_DECLARE(Kind) absl::Status Run(const Kind& op, Scratch scratch, const Context& context);
SHALE_EACH_OP_KIND(SHALE_DECLARE)
#undef SHALE_DECLARE

// Computes an op by its Run or its RunOnHost.
template <class OpType>
absl::Status RunAny(const OpType& op, Scratch scratch, const Context& context) {
  if constexpr (requires { RunOnHost(op); }) {
    return RunOnHost(op);
  } else {
    return Run(op, scratch, context);
  }
}

}  // namespace shale::cpu
