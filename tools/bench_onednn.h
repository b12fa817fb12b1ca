// Matrix products by oneDNN alone, as bench_products times them: dense operands of ordinary numbers, operand b in the
// layout that oneDNN likes best, packed beforehand, nothing added or accumulated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"
#include "oneapi/dnnl/dnnl.hpp"
#include "tools/bench_step_work.h"

namespace shale {

struct FreeBytes {
  void operator()(std::byte* data) const { std::free(data); }
};
using OperandBytes = std::unique_ptr<std::byte, FreeBytes>;

// Numbers of ordinary size, for products of zeros or denormals have a speed of their own. Null: no memory.
OperandBytes RandomOperand(size_t size_bytes, DType dtype);

// Below AVX-512 oneDNN multiplies no bf16, and neither does the engine: it widens.
bool MultipliesBFloat16(const dnnl::engine& engine);

// One size, on all of OpenMP's threads, with operands of its own, so that two sizes share no cache lines.
class LinearProduct {
 public:
  // May throw dnnl::error. REQUIRES: `engine` outlives it.
  static absl::StatusOr<LinearProduct> Create(const ProductSize& size, const dnnl::engine& engine);

  // Seconds. May throw dnnl::error.
  double Run(dnnl::stream& stream);

 private:
  dnnl::matmul primitive_;
  std::unordered_map<int, dnnl::memory> arguments_;
  std::vector<OperandBytes> operands_;
};

// The products that attention of one size consists of, a head to a thread at a time: q k^T and p v forward; q k^T
// again, d_out v^T, and those of d_q, d_k and d_v backward. Queries are taken in strips, each with the keys that it
// sees, of the length that is the fastest of some here. Scores are f32, and operands lie in caches, as an engine's may.
class AttentionProducts {
 public:
  // May throw dnnl::error.
  static absl::StatusOr<AttentionProducts> Create(const AttentionSize& size, int threads, const dnnl::engine& engine);

  // Seconds. May throw dnnl::error.
  double Run() { return Run(fastest_); }

 private:
  struct Operands {
    dnnl::memory a, b, c, scratch;
  };
  struct Product {
    dnnl::matmul::primitive_desc description;
    dnnl::matmul primitive;
    std::vector<Operands> of_thread;
  };
  using Strips = std::vector<Product>;  // Of one head.

  AttentionProducts(const AttentionSize& size, int threads) : size_(size), threads_(threads) {}
  Strips StripsOf(int64_t length, const dnnl::engine& engine) const;
  // False: no memory.
  bool Bind(Strips& strips, const dnnl::engine& engine);
  double Run(const Strips& strips);

  AttentionSize size_;
  int threads_;
  std::vector<OperandBytes> bytes_;    // Each operand of each thread: enough for the largest product.
  std::vector<dnnl::stream> streams_;  // One for each thread.
  Strips fastest_;
};

}  // namespace shale
