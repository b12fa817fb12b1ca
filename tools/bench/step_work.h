// Counts what a step computes and moves: its matmuls by size, and the rest in sums.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "engine/compile/program/program.h"
#include "kernels/dtype.h"

namespace shale {

// The size of a matmul c [M, N] = a b. The contiguous dimension of a is K, or M if it is transposed.
struct MatMulSize {
  int64_t m = 0, n = 0, k = 0;
  bool transposed_a = false;
  DType dtype = DType::kFloat32;  // The dtype of a and b.
  DType c_dtype = DType::kFloat32;
  auto operator<=>(const MatMulSize&) const = default;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

// The size of attention. `heads` counts the query heads of all sequences together, each over `length` positions. If
// causal, a position sees itself and at most window - 1 positions before it; window 0 means all before it. Otherwise it
// sees all.
struct AttentionSize {
  int64_t heads = 0, length = 0, width = 0, window = 0;
  bool causal = true;
  bool backward = false;
  DType dtype = DType::kFloat32;
  auto operator<=>(const AttentionSize&) const = default;
};

// The work of one rank in one step.
struct StepWork {
  // The distinct sizes of its matmuls. `order` has an index into `shapes` for each matmul, in the program's order.
  std::vector<MatMulSize> shapes;
  std::vector<size_t> order;
  std::map<AttentionSize, int64_t> attention;  // How often each size runs.
  double attention_flops = 0;
  // Bytes that packing reads and writes. An operand b is packed into the layout of the fastest matmul when it is first
  // used, and again after its buffer was written.
  int64_t packed_bytes = 0;
  int64_t other_bytes = 0;  // Operand bytes of all other ops and of collectives, once for each access.
};

// Returns the work of one rank. Counts every instruction as often as the step runs it.
StepWork WorkOf(const StepProgram& program);

}  // namespace shale
