// The ops that bench_ops times, in the shapes that a decoder's training step gives them.
//
// Bytes moved by an op: every operand's elements times their size, once for each access (read 1, write 1, read-write
// 2),
//   bytes = sum over operands of elements x size x (reads + writes),
// however often a kernel touches them in cache. Rows that are chosen by tokens count as often as they are chosen, at
// most once per row of the table: an embedding's weight min(T, V) rows; so does its gradient when it accumulates (else
// all rows are written). ZeroRanges counts what it writes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/ops.h"

namespace shale {

// T tokens in sequences of S, C width, F inner width of the feed-forward sublayer, V vocabulary, H heads of which G
// hold keys and values, D their width. The defaults are the block of a 34.1 M parameter Llama.
struct OpSizes {
  int64_t tokens = 2048;
  int64_t sequence = 256;
  int64_t width = 512;
  int64_t hidden = 1408;
  int64_t vocabulary = 8192;
  int64_t heads = 8;
  int64_t kv_heads = 8;
  int64_t head_width = 64;
  int64_t head_tokens = 512;       // Rows of a chunk of logits.
  int64_t parameters = 3'212'288;  // Of a unit: the length of flat vectors.
  int64_t square = 2048;           // M, N and K of the product that is taken for the machine's peak.
};

// What sizes have to do with each other (InvalidArgument).
absl::Status CheckSizes(const OpSizes& sizes);

struct OpCase {
  std::string name;               // What it is, as "RmsNormForward residual": the op's own name first.
  std::string sizes;              // "[2048, 512]", or of a product "2048 x 1536 x 512" (M x N x K).
  DType dtype = DType::kFloat32;  // Of its act tensors.
  Op op;                          // Symbolic: where.symbol is an index into buffer_bytes.
  std::vector<int64_t> buffer_bytes;
  int64_t vocabulary = 0;  // Tokens are below.
  double bytes = 0;        // Moved, see above.
  double flops = 0;        // Above 0 for products and attention.

  // Of one set of operands, each buffer aligned to 256 bytes and staggered (kStaggerBytes).
  int64_t size_bytes() const;
  // The op on operands at `base`, size_bytes() of it.
  Op Bind(std::byte* base) const;
};

// Writes numbers of ordinary size to all operands of a bound op: kernels may be slow for others.
void FillOperands(const OpCase& test_case, const Op& bound);

// All cases of act dtype `dtype`: f32 or bf16. REQUIRES: CheckSizes(sizes).
std::vector<OpCase> OpCases(const OpSizes& sizes, DType dtype);
// The square product alone.
OpCase SquareProduct(const OpSizes& sizes, DType dtype);

// Names of ops that no case runs: those of a few numbers each, which are not worth timing.
std::vector<std::string> OpsWithoutCase(const std::vector<OpCase>& cases);

}  // namespace shale
