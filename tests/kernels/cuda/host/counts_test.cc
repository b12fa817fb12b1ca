// States how many bytes our kernels move, and prints what they do for a row. With SHALE_COUNTED_ROWS=16384, norms have
// as many rows as a micro-batch has tokens, so that what a block does once counts for little.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/norm.h"
#include "kernels/ops/rope.h"
#include "tests/kernels/cuda/host/reserved_memory.h"
#include "tests/kernels/cuda/host/run_kernel.h"
#include "tests/kernels/cuda/host/stream.h"

namespace shale::testing {
namespace {

constexpr DType kCountedAct = DType::kBFloat16;

// Runs `op` on `rows` rows, prints its counts for each of them, and returns all.
template <class OpType>
cuda_on_host::Counts CountOf(const std::string& what, ReservedMemory& memory, const OpType& op, int64_t rows) {
  cuda_on_host::Stream stream;
  const int64_t scratch_bytes = cuda::ScratchBytesOf(op);
  const Scratch scratch = {static_cast<std::byte*>(memory.Bytes(scratch_bytes)), scratch_bytes};
  const absl::Status status = cuda::Run(op, scratch, &stream);
  EXPECT_TRUE(status.ok()) << status;
  const cuda_on_host::Counts& counts = stream.counts;
  const double per_row = 1.0 / static_cast<double>(rows);
  absl::PrintF(
      "| %s | %.0f | %.0f | %.0f | %.1f | %.2f | %.1f | %.1f |\n", what,
      static_cast<double>(counts.read_bytes) * per_row, static_cast<double>(counts.written_bytes) * per_row,
      static_cast<double>(counts.shared_accessed_bytes) * per_row, static_cast<double>(counts.accesses) * per_row / 32,
      static_cast<double>(counts.block_barriers) * per_row, static_cast<double>(counts.warp_operations) * per_row,
      static_cast<double>(counts.block_shared_bytes) / 1024);
  return counts;
}

void PrintHead() {
  absl::PrintF(
      "| op | bytes read | bytes written | bytes of shared memory | accesses of a warp | barriers of a block | "
      "operations of a warp | KiB of shared memory of a block |\n|---|---|---|---|---|---|---|---|\n");
}

// Rows of the widths of Qwen2.5 0.5B, 1.5B, 3B and 7B.
constexpr int64_t kCountedWidths[] = {896, 1536, 2048, 3584};

int64_t CountedRows() {
  const char* given = std::getenv("SHALE_COUNTED_ROWS");
  return given == nullptr ? 132 : std::atoll(given);
}

TEST(KernelCounts, NormsMoveEachRowOnce) {
  PrintHead();
  const int64_t rows = CountedRows();
  for (const int64_t width : kCountedWidths) {
    ReservedMemory memory;
    const auto matrix = [&] { return memory.Zeros(kCountedAct, {rows, width}); };
    const Tensor weight = memory.Zeros(kCountedAct, {width}), rstd = memory.Zeros(DType::kFloat32, {rows});
    RmsNormForward forward{.x = matrix(), .weight_C = weight, .y = matrix(), .rstd_R = rstd};
    forward.residual = matrix();
    forward.sum = matrix();
    const RmsNormBackward backward = {.d_y = forward.y,
                                      .x = forward.x,
                                      .weight_C = weight,
                                      .rstd_R = rstd,
                                      .d_residual = forward.residual,
                                      .d_x = forward.sum,
                                      .d_weight_C = memory.Zeros(DType::kFloat32, {width})};
    const int64_t row_bytes = 2 * width * rows;
    const std::string columns = absl::StrFormat("%d", width);
    const cuda_on_host::Counts f = CountOf("RmsNormForward, C = " + columns, memory, forward, rows);
    EXPECT_EQ(f.written_bytes, 2 * row_bytes + 4 * rows);
    EXPECT_GE(f.read_bytes, 2 * row_bytes);
    const cuda_on_host::Counts b = CountOf("RmsNormBackward, C = " + columns, memory, backward, rows);
    EXPECT_GE(b.read_bytes, 3 * row_bytes);
    EXPECT_GE(b.written_bytes, row_bytes);
  }
}

// Queries and keys, and their bias with that of values, of Qwen2.5 0.5B.
TEST(KernelCounts, RopeAndTheBiasGradientMoveEachRowOnce) {
  PrintHead();
  const int64_t rows = CountedRows();
  constexpr int64_t kHeads = 16, kHeadWidth = 64, kColumns = 1152;
  ReservedMemory memory;
  const Rope rope = {.x_BSHD = memory.Zeros(kCountedAct, {1, rows, kHeads, kHeadWidth})};
  const cuda_on_host::Counts r = CountOf("Rope, 16 heads of 64", memory, rope, rows);
  const int64_t row_bytes = 2 * kHeads * kHeadWidth, table_bytes = 4 * kHeadWidth;  // Of cosines and sines, for a row.
  EXPECT_EQ(r.written_bytes, rows * (row_bytes + table_bytes));
  // A thread rotates eight heads by what it has read of the table.
  EXPECT_EQ(r.read_bytes, rows * (row_bytes + kHeads / 8 * table_bytes));
  const BiasBackward bias = {.d_out_TN = memory.Zeros(kCountedAct, {rows, kColumns}),
                             .d_bias_N = memory.Zeros(DType::kFloat32, {kColumns})};
  const cuda_on_host::Counts b = CountOf("BiasBackward, 1,152 columns", memory, bias, rows);
  EXPECT_GE(b.read_bytes, 2 * kColumns * rows);
}

// A row of 0.5B's feed-forward sublayer.
TEST(KernelCounts, Float8ReadsEachNumberOnceForBothCopies) {
  PrintHead();
  const int64_t rows = CountedRows() / 16 * 16;
  constexpr int64_t kColumns = 4864, kTile = 128;
  ReservedMemory memory;
  const Tensor x = memory.Zeros(kCountedAct, {rows, kColumns}), scalar = memory.Zeros(DType::kFloat32, {1});
  const AbsMax maximum = {.x_RC = x, .maximum_1 = scalar};
  const cuda_on_host::Counts m = CountOf("AbsMax, C = 4864", memory, maximum, rows);
  const int64_t bytes = 2 * rows * kColumns, blocks = CeilDivide(rows * kColumns, 8 * cuda::kMaximumPacks);
  EXPECT_EQ(m.read_bytes, bytes + 4 * blocks);
  EXPECT_EQ(m.written_bytes, 4 * blocks + 4);
  const QuantizeFloat8 quantize = {.x_RC = x,
                                   .maximum_1 = scalar,
                                   .out_RC = memory.Zeros(DType::kFloat8E4M3, {rows, kColumns}),
                                   .transposed_CR = memory.Zeros(DType::kFloat8E4M3, {kColumns, rows}),
                                   .scale_1 = memory.Zeros(DType::kFloat32, {1})};
  const cuda_on_host::Counts q = CountOf("QuantizeFloat8, C = 4864", memory, quantize, rows);
  EXPECT_EQ(q.read_bytes, bytes + 4 * CeilDivide(rows, kTile) * (kColumns / kTile));  // Each block reads the maximum.
  EXPECT_EQ(q.written_bytes, bytes + 4);
}

// A matrix with blockwise scales is read once in all, because nothing looks for its maximum before.
TEST(KernelCounts, BlockwiseFloat8ReadsEachNumberOnce) {
  PrintHead();
  const int64_t rows = CountedRows() / 16 * 16;
  constexpr int64_t kColumns = 4864;
  ReservedMemory memory;
  const Float8ScaleMatrix out = Float8ScaleMatrix::Of(Float8Scales::kTiles, rows, kColumns),
                          transposed = Float8ScaleMatrix::Of(Float8Scales::kTiles, kColumns, rows);
  const QuantizeFloat8 quantize = {
      .x_RC = memory.Zeros(kCountedAct, {rows, kColumns}),
      .out_RC = memory.Zeros(DType::kFloat8E4M3, {rows, kColumns}),
      .transposed_CR = memory.Zeros(DType::kFloat8E4M3, {kColumns, rows}),
      .out_scales = memory.Zeros(DType::kFloat32, {out.rows, out.columns}),
      .transposed_scales = memory.Zeros(DType::kFloat32, {transposed.rows, transposed.columns}),
      .scales = Float8Scales::kTiles};
  const cuda_on_host::Counts q = CountOf("QuantizeFloat8 in tiles, C = 4864", memory, quantize, rows);
  EXPECT_EQ(q.read_bytes, 2 * rows * kColumns);
  EXPECT_EQ(q.written_bytes, 2 * rows * kColumns + 4 * (out.elements() + transposed.elements()));
}

// A matrix that is computed on the way is not read. In place of it AbsMax reads once what the matrix is computed from,
// and so does QuantizeFloat8, but for the gradient of a gate: there each half of a row reads it, one after the other.
// All threads read the weights and statistics of a norm, which the L1 cache holds. RoPE has a test of its own.
TEST(KernelCounts, Float8SourcesReadWhatTheirOpsRead) {
  PrintHead();
  const int64_t rows = CountedRows() / 16 * 16;
  constexpr int64_t kInner = 4864, kPack = 8;
  using Kind = Float8Source::Kind;
  for (const Kind kind :
       {Kind::kNorm, Kind::kLayerNorm, Kind::kGelu, Kind::kGeluGradient, Kind::kGate, Kind::kGateGradient}) {
    const bool layer_norm = kind == Kind::kLayerNorm, norm = kind == Kind::kNorm || layer_norm;
    const bool gates = kind == Kind::kGateGradient, gated = kind == Kind::kGate || gates;
    const bool gradient = kind == Kind::kGeluGradient || gates;
    const int64_t columns = gates ? 2 * kInner : kInner;
    ReservedMemory memory;
    Float8Source source = {.kind = kind};
    if (norm) source.weight_C = memory.Zeros(kCountedAct, {kInner});
    if (norm) source.rstd_R = memory.Zeros(DType::kFloat32, {rows});
    if (layer_norm) source.bias_C = memory.Zeros(kCountedAct, {kInner});
    if (layer_norm) source.mean_R = memory.Zeros(DType::kFloat32, {rows});
    if (gradient) source.d_y_RF = memory.Zeros(kCountedAct, {rows, kInner});
    const AbsMax maximum = {.x_RC = memory.Zeros(kCountedAct, {rows, gated ? 2 * kInner : kInner}),
                            .maximum_1 = memory.Zeros(DType::kFloat32, {1}),
                            .source = source};
    const std::string name(ToString(kind).data(), ToString(kind).size());
    const cuda_on_host::Counts m = CountOf("AbsMax of a " + name, memory, maximum, rows);
    // x, d_y, weight and bias, and for each pack rstd and mean.
    const int64_t once =
        rows * (2 * kInner * (1 + gated + gradient + norm + layer_norm) + 4 * kInner / kPack * (norm + layer_norm));
    const int64_t blocks = CeilDivide(rows * kInner / kPack, cuda::kMaximumPacks);
    EXPECT_EQ(m.read_bytes, once + 4 * blocks);
    const auto scales = [&](int64_t of_rows, int64_t of_columns) {
      const Float8ScaleMatrix matrix = Float8ScaleMatrix::Of(Float8Scales::kTiles, of_rows, of_columns);
      return memory.Zeros(DType::kFloat32, {matrix.rows, matrix.columns});
    };
    const QuantizeFloat8 quantize = {.x_RC = maximum.x_RC,
                                     .out_RC = memory.Zeros(DType::kFloat8E4M3, {rows, columns}),
                                     .transposed_CR = memory.Zeros(DType::kFloat8E4M3, {columns, rows}),
                                     .out_scales = scales(rows, columns),
                                     .transposed_scales = scales(columns, rows),
                                     .scales = Float8Scales::kTiles,
                                     .source = source};
    const cuda_on_host::Counts q = CountOf("QuantizeFloat8 of a " + name + " in tiles", memory, quantize, rows);
    EXPECT_EQ(q.read_bytes, gates ? 2 * once : once);
  }
}

// To rotate a number back reads the other one of its pair, a cosine and a sine as well. These lie in the L1 cache, or
// in that of L2: a tile has the other half of its heads, and a table of all positions is far smaller than a matrix.
TEST(KernelCounts, Float8OfRotatedHeadsReadsPairsAndTheTable) {
  PrintHead();
  const int64_t rows = CountedRows() / 16 * 16;
  constexpr int64_t kHeads = 16, kHeadWidth = 64, kColumns = 18 * kHeadWidth;  // Of Qwen2.5 0.5B.
  ReservedMemory memory;
  const AbsMax maximum = {.x_RC = memory.Zeros(kCountedAct, {rows, kColumns}),
                          .maximum_1 = memory.Zeros(DType::kFloat32, {1}),
                          .source = {.kind = Float8Source::Kind::kRope,
                                     .rotation = {.sequence_length = rows, .heads = kHeads, .head_width = kHeadWidth}}};
  const int64_t wanted = rows * (2 * kColumns + (2 + 2 * 4) * kHeads * kHeadWidth);
  const cuda_on_host::Counts m = CountOf("AbsMax of rotated heads", memory, maximum, rows);
  EXPECT_EQ(m.read_bytes, wanted + 4 * CeilDivide(rows * kColumns / 8, cuda::kMaximumPacks));
  const QuantizeFloat8 quantize = {.x_RC = maximum.x_RC,
                                   .maximum_1 = maximum.maximum_1,
                                   .out_RC = memory.Zeros(DType::kFloat8E5M2, {rows, kColumns}),
                                   .transposed_CR = memory.Zeros(DType::kFloat8E5M2, {kColumns, rows}),
                                   .scale_1 = memory.Zeros(DType::kFloat32, {1}),
                                   .source = maximum.source};
  const cuda_on_host::Counts q = CountOf("QuantizeFloat8 of rotated heads", memory, quantize, rows);
  EXPECT_EQ(q.read_bytes, wanted + 4 * CeilDivide(rows, 128) * CeilDivide(kColumns, 128));
}

TEST(KernelCounts, CrossEntropyReadsAndWritesEveryLogitOnce) {
  PrintHead();
  for (const int64_t vocabulary : {32000, 50264, 128256, 151936, 256000}) {
    constexpr int64_t kRows = 2;
    ReservedMemory memory;
    const CrossEntropy op = {.logits_TV = memory.Zeros(kCountedAct, {kRows, vocabulary}),
                             .targets_T = memory.Zeros(DType::kInt32, {kRows}),
                             .scale_1 = memory.Zeros(DType::kFloat32, {1}),
                             .loss_T = memory.Zeros(DType::kFloat32, {kRows})};
    const cuda_on_host::Counts counts = CountOf(absl::StrFormat("CrossEntropy, V = %d", vocabulary), memory, op, kRows);
    EXPECT_EQ(counts.written_bytes, kRows * (2 * vocabulary + 4));
    // Each thread reads the row's target, and one that logit again, and the scale. An SM keeps 147,456 logits.
    const int64_t threads = vocabulary <= 147456 / 2 ? 512 : 1024, again = std::max<int64_t>(0, vocabulary - 147456);
    EXPECT_EQ(counts.read_bytes, kRows * (2 * (vocabulary + again) + 4 * threads + 2 + 4));
  }
}

// Half of the positions hold one token, as padding does. Each row is read once, and the sum of each of its segments but
// the first is written and read once.
TEST(KernelCounts, AFrequentTokenIsReadOnce) {
  PrintHead();
  constexpr int64_t kTokens = 1024, kWidth = 896, kVocabulary = 600;
  TestMemory memory;
  std::vector<double> tokens(kTokens, 7);
  for (int64_t t = 0; t < kTokens; t += 2) tokens[t] = static_cast<double>(t % 512 + 8);
  const EmbeddingBackward op = {.tokens_BS = memory.Values(DType::kInt32, {1, kTokens}, tokens),
                                .d_out_TC = memory.Random(kCountedAct, {kTokens, kWidth}),
                                .d_weight_VC = memory.Random(DType::kFloat32, {kVocabulary, kWidth}),
                                .accumulate = true};
  cuda_on_host::Stream stream;
  std::vector<std::byte> image;
  ASSERT_TRUE(RunKernel(memory, op, stream, image).ok());
  constexpr int64_t kRows = 2 * kWidth * kTokens, kGradients = 4 * kWidth * (1 + 256), kPartials = 4 * kWidth * 3;
  const cuda_on_host::Counts& counts = stream.counts;
  EXPECT_GE(static_cast<int64_t>(counts.read_bytes), kRows + kGradients + kPartials);
  absl::PrintF("| EmbeddingBackward, half of %d tokens are one | %.0f | %.0f |\n", kTokens,
               static_cast<double>(counts.read_bytes) / kTokens, static_cast<double>(counts.written_bytes) / kTokens);
  EXPECT_EQ(static_cast<int64_t>(counts.written_bytes), kGradients + kPartials + 8 * kTokens);
}

// What an SM cannot keep is read again. So the bits are those of any other GPU.
TEST(KernelCounts, CrossEntropyHasTheSameBitsWithLessSharedMemory) {
  for (const DType act : {DType::kFloat32, DType::kBFloat16}) {
    for (const int64_t vocabulary : {1003, 40000, 70001}) {
      SCOPED_TRACE(vocabulary);
      TestMemory memory;
      const CrossEntropy op = {.logits_TV = memory.Random(act, {2, vocabulary}, -8, 8),
                               .targets_T = memory.Values(DType::kInt32, {2}, {5, 900}),
                               .scale_1 = memory.Values(DType::kFloat32, {1}, {0.5}),
                               .loss_T = memory.Output(DType::kFloat32, {2})};
      std::vector<std::byte> whole, part;
      cuda_on_host::Stream h200, smaller{.sm_shared_bytes = size_t{100} << 10};
      ASSERT_TRUE(RunKernel(memory, op, h200, whole).ok());
      ASSERT_TRUE(RunKernel(memory, op, smaller, part).ok());
      EXPECT_TRUE(whole == part);
      // An SM of 100 KiB keeps two rows of 40,960 logits in bf16, or one in fp32.
      EXPECT_EQ(smaller.counts.read_bytes > h200.counts.read_bytes, vocabulary == 70001);
    }
  }
}

}  // namespace
}  // namespace shale::testing
