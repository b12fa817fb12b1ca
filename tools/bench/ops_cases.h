// The ops that the ops bench times, in the shapes of a decoder's training step.
//
// The bytes that an op moves are those of TrafficOf (kernels/op.h), read and written, however often a kernel touches
// them in cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/op.h"

namespace shale {

// T tokens in sequences of S, C width, F inner width of the feed-forward sublayer, V vocabulary, H query heads, G key
// and value heads, D width of a head. The defaults are those of a block of a 34.1 M parameter Llama.
struct OpSizes {
  int64_t tokens = 2048;
  int64_t sequence = 256;
  int64_t width = 512;
  int64_t hidden = 1408;
  int64_t vocabulary = 8192;
  int64_t heads = 8;
  int64_t kv_heads = 8;
  int64_t head_width = 64;
  int64_t head_tokens = 512;       // Tokens per chunk of logits.
  int64_t parameters = 3'212'288;  // Parameters of a unit, the length of its flat vectors.
  int64_t square = 2048;           // M, N and K of the matmul that measures the machine's peak.
};

// Returns InvalidArgument if two sizes do not go together.
absl::Status CheckSizes(const OpSizes& sizes);

// One op with the shapes of its operands.
struct OpCase {
  std::string name;               // The op's name and a variant: "RmsNormForward residual".
  std::string sizes;              // "[2048, 512]", or for a matmul M x N x K: "2048 x 1536 x 512".
  DType dtype = DType::kFloat32;  // Of weights and activations.
  Op op;                          // Without addresses: where.symbol is an index into buffer_bytes.
  std::vector<int64_t> buffer_bytes;
  int64_t vocabulary = 0;  // Token operands are below this number.
  double bytes = 0;        // Bytes moved.
  double flops = 0;        // Positive for matmuls and attention, otherwise 0.

  // Returns the bytes of one set of operands, with each buffer aligned to 256 bytes and staggered (kStaggerBytes).
  int64_t size_bytes() const;
  // Returns the op with its operands placed in the size_bytes() bytes at `base`.
  Op Bind(std::byte* base) const;
};

// Fills all operands of a bound op with numbers of ordinary size, because kernels may be slow for others. Writes to the
// operands' addresses, which must be host memory.
void FillOperands(const OpCase& test_case, const Op& bound);

// Returns all cases whose weights and activations have this dtype, f32 or bf16. REQUIRES: CheckSizes(sizes) is OK.
std::vector<OpCase> OpCases(const OpSizes& sizes, DType dtype);
// Returns the square matmul that measures the peak.
OpCase SquareMatMul(const OpSizes& sizes, DType dtype);

// Returns the names of ops that no case runs. They have only a few numbers each and are not worth timing.
std::vector<std::string> OpsWithoutCase(const std::vector<OpCase>& cases);

}  // namespace shale
