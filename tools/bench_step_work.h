// What a step computes and moves: its matrix products by size, and the rest in sums.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "engine/program/program.h"
#include "kernels/dtype.h"

namespace shale {

// c [M, N] = a b, with a dense in K, or in M when it is transposed.
struct ProductSize {
  int64_t m = 0, n = 0, k = 0;
  bool transposed_a = false;
  DType dtype = DType::kFloat32;  // Of a and b.
  DType c_dtype = DType::kFloat32;
  auto operator<=>(const ProductSize&) const = default;
  double flops() const { return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k); }
};

// Causal attention of `heads` query heads, those of all sequences together, each over `length` positions of which it
// sees itself and at most window - 1 before it (window 0: all before it).
struct AttentionSize {
  int64_t heads = 0, length = 0, width = 0, window = 0;
  bool backward = false;
  DType dtype = DType::kFloat32;
  auto operator<=>(const AttentionSize&) const = default;
};

// One rank's step.
struct StepWork {
  // Its products by size: indices into `shapes`, in the order of the program.
  std::vector<ProductSize> shapes;
  std::vector<size_t> order;
  std::map<AttentionSize, int64_t> attention;  // How often each.
  double attention_flops = 0;
  // Operands b of the products, read and written: each is brought into the order in which products are fastest when it
  // is first used, and again when something else has been written there.
  int64_t packed_bytes = 0;
  int64_t other_bytes = 0;  // Operands of all other ops and of collectives, once for each access.
};

// Of one rank, every instruction as often as the step runs it.
StepWork WorkOf(const StepProgram& program);

}  // namespace shale
