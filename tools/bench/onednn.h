// The matmuls of oneDNN that the matmuls bench times: dense operands with numbers of ordinary size, operand b packed
// beforehand in the layout that oneDNN prefers, nothing added or accumulated.
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
#include "tools/bench/step_work.h"

namespace shale {

struct FreeBytes {
  void operator()(std::byte* data) const { std::free(data); }
};
using OperandMemory = std::unique_ptr<std::byte, FreeBytes>;

// Returns memory filled with numbers in [-1, 1): matmuls of zeros or denormals may run at another speed. Returns null
// if there is no memory.
OperandMemory RandomOperand(size_t size_bytes, DType dtype);

// Returns whether oneDNN multiplies bf16 on this processor. Without AVX-512 it does not. There the engine does not
// either: it widens the operands to fp32.
bool MultipliesBFloat16(const dnnl::engine& engine);

// A matmul of one size on all OpenMP threads. Owns its operands, so that two sizes share no cache lines.
class LinearMatMul {
 public:
  // May throw dnnl::error. REQUIRES: `engine` outlives it.
  static absl::StatusOr<LinearMatMul> Create(const MatMulSize& size, const dnnl::engine& engine);

  // Runs once and returns the seconds. May throw dnnl::error.
  double Run(dnnl::stream& stream);

 private:
  dnnl::matmul primitive_;
  std::unordered_map<int, dnnl::memory> arguments_;
  std::vector<OperandMemory> operands_;
};

// The matmuls of attention of one size. Each thread runs one head at a time.
// Those of forward are q k^T and p v. Those of backward are q k^T again, d_out v^T, and one each for d_q, d_k and d_v.
// Queries are divided into strips, and each strip is multiplied with only the keys that it sees. Create() tries several
// strip lengths and keeps the fastest. Scores are f32. Operands may stay in the caches, as they may in an engine.
class AttentionMatMuls {
 public:
  // May throw dnnl::error.
  static absl::StatusOr<AttentionMatMuls> Create(const AttentionSize& size, int threads, const dnnl::engine& engine);

  // Runs all heads once and returns the seconds. May throw dnnl::error.
  double Run() { return Run(fastest_); }

 private:
  struct Operands {
    dnnl::memory a, b, c, scratch;
  };
  struct HeadMatMul {
    dnnl::matmul::primitive_desc description;
    dnnl::matmul primitive;
    std::vector<Operands> of_thread;
  };
  using Strips = std::vector<HeadMatMul>;  // The matmuls of one head.

  AttentionMatMuls(const AttentionSize& size, int threads) : size_(size), threads_(threads) {}
  Strips StripsOf(int64_t length, const dnnl::engine& engine) const;
  // Returns false if there is no memory.
  bool Bind(Strips& strips, const dnnl::engine& engine);
  double Run(const Strips& strips);

  AttentionSize size_;
  int threads_;
  std::vector<OperandMemory> bytes_;   // Four operands per thread, each as large as the largest matmul needs.
  std::vector<dnnl::stream> streams_;  // One per thread.
  Strips fastest_;
};

}  // namespace shale
