// One function per op, on bound tensors, and what each needs of scratch. Private to kernels/cpu.
//
// A kernel of ours allocates nothing on the heap (oneDNN does, see products.h): partial sums live in `scratch`, whose
// size ScratchBytesOf gives. The number of threads never decides how a sum is split.
#pragma once

#include <memory>

#include "absl/status/status.h"
#include "kernels/op_backend.h"
#include "kernels/ops.h"

namespace shale::cpu {

class Products;  // products.h: oneDNN primitives, by shape.

// What the kernels of one CpuOps share. Kernels of several streams read it at once.
struct Context {
  int threads = 1;
  std::shared_ptr<Products> products;
};

// Bytes of scratch. Ops without an overload of their own need none.
template <class OpType>
int64_t ScratchBytesOf(const OpType&, const Context&) {
  return 0;
}
int64_t ScratchBytesOf(const MatMul& op, const Context& context);
int64_t ScratchBytesOf(const AttentionForward& op, const Context& context);
int64_t ScratchBytesOf(const AttentionBackward& op, const Context& context);
int64_t ScratchBytesOf(const Rope& op, const Context& context);
int64_t ScratchBytesOf(const CrossEntropy& op, const Context& context);
int64_t ScratchBytesOf(const RmsNormBackward& op, const Context& context);
int64_t ScratchBytesOf(const LayerNormBackward& op, const Context& context);
int64_t ScratchBytesOf(const GroupNormForward& op, const Context& context);
int64_t ScratchBytesOf(const GroupNormBackward& op, const Context& context);
int64_t ScratchBytesOf(const BiasBackward& op, const Context& context);
int64_t ScratchBytesOf(const Sum& op, const Context& context);
int64_t ScratchBytesOf(const SumSquares& op, const Context& context);

// Ops::PackedBytes.
int64_t PackedBytesOf(const MatMul& op, const Context& context);

// What costs time once per shape. Ops without an overload of their own have nothing to prepare.
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
// norm.cc, group_norm.cc
absl::Status Run(const RmsNormForward& op, Scratch scratch, const Context& context);
absl::Status Run(const RmsNormBackward& op, Scratch scratch, const Context& context);
absl::Status Run(const LayerNormForward& op, Scratch scratch, const Context& context);
absl::Status Run(const LayerNormBackward& op, Scratch scratch, const Context& context);
absl::Status Run(const GroupNormForward& op, Scratch scratch, const Context& context);
absl::Status Run(const GroupNormBackward& op, Scratch scratch, const Context& context);
// activation.cc
absl::Status Run(const SwiGluForward& op, Scratch scratch, const Context& context);
absl::Status Run(const SwiGluBackward& op, Scratch scratch, const Context& context);
absl::Status Run(const GeluForward& op, Scratch scratch, const Context& context);
absl::Status Run(const GeluBackward& op, Scratch scratch, const Context& context);
// elementwise.cc
absl::Status Run(const BiasBackward& op, Scratch scratch, const Context& context);
absl::Status Run(const Sum& op, Scratch scratch, const Context& context);
absl::Status Run(const SumSquares& op, Scratch scratch, const Context& context);
absl::Status Run(const Copy& op, Scratch scratch, const Context& context);
absl::Status Run(const Add& op, Scratch scratch, const Context& context);
absl::Status Run(const Accumulate& op, Scratch scratch, const Context& context);
absl::Status Run(const ZeroRanges& op, Scratch scratch, const Context& context);
// optimizer.cc
absl::Status Run(const LossScale& op, Scratch scratch, const Context& context);
absl::Status Run(const FlagNonFinite& op, Scratch scratch, const Context& context);
absl::Status Run(const PrepareUpdate& op, Scratch scratch, const Context& context);
absl::Status Run(const AdamW& op, Scratch scratch, const Context& context);

}  // namespace shale::cpu
