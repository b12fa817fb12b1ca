// Work: what an instruction does, in the numbers that its time depends on. A machine profile (proto/machine.proto)
// holds the seconds of works that were measured; the seconds of others follow from their neighbors.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/compile/program/program.h"
#include "sharding/mesh.h"

namespace shale {

// What a work keeps busy.
enum class WorkClass : uint8_t {
  kArithmetic,  // Matmuls and attention.
  kMemory,      // All other ops: they are bound by the bytes that they move.
  kHost,        // Ops on the host.
  kCollective,
  kCopy,  // Between device and host.
};
inline constexpr int kWorkClasses = static_cast<int>(WorkClass::kCopy) + 1;

struct Work {
  WorkClass work_class = WorkClass::kMemory;
  // Names what has the same code on a device: the op with its dtypes and options, a collective with its axis, a copy
  // with its direction. "MatMul bf16 bf16 f32 transpose_b", "AttentionForward cuDNN bf16 causal" (Ops::KernelsOf),
  // "RmsNormForward f32", "Host AdamW f32", "AllGather f32 shard", "Offload". Works of one kind can be interpolated
  // between each other.
  std::string kind;
  // The sizes that tell works of a kind apart, always in the same number. Matmul: M, N, K. Attention: query heads of
  // all sequences, query heads of each key head, tokens, head width, window (0: none). Other ops: rows and columns of
  // the largest operand. Collectives: elements of the full vector and ranks of the group. Copies: bytes.
  std::vector<double> sizes;
  double flops = 0;          // Of matmuls and attention (FlopsOf).
  double bytes_read = 0;     // In device memory. A collective reads what the rank contributes.
  double bytes_written = 0;  // In device memory.
  // Of collectives: the ranks of a group, how far apart two neighbors of it are among all ranks, and the bytes that one
  // rank sends if the vector goes around a ring.
  int64_t group_ranks = 1;
  int64_t group_stride = 1;
  double sent_bytes = 0;

  double bytes() const { return bytes_read + bytes_written; }
};

// Returns the kind of a collective of this kind between ranks on CPUs that are in several processes: "AllGather f32
// shard processes". Such ranks copy more than threads do.
std::string KindBetweenProcesses(absl::string_view kind);
bool IsBetweenProcesses(absl::string_view kind);

// Returns whether works of this kind multiply fp8 matrices.
bool MultipliesFloat8(absl::string_view kind);

// Returns the work of `issued`, an instruction in the form in which it is issued (BoundProgram::OfIteration, TakeForm).
// `mesh` is that of the job. Does not look at addresses, so the instruction may be symbolic.
Work WorkOf(const Instruction& issued, const Mesh& mesh);

// Returns the work in one line, as profiles and reports name it: "MatMul bf16 bf16 f32 transpose_b 1024 x 512 x 256".
// Two works of equal text take the same time.
std::string WorkText(const Work& work);

}  // namespace shale
