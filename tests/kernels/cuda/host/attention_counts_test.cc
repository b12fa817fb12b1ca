// States what attention on tensor cores moves and multiplies, causal and without documents, and prints it for each
// token and head of queries. With SHALE_COUNTED_LENGTH=4096, sequences have that many tokens.
//
// S tokens of a sequence, H heads of queries that share one of keys and values, D elements of a head.
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"
#include "kernels/cuda/kernels.h"
#include "kernels/ops/attention.h"
#include "tests/kernels/cuda/host/reserved_memory.h"
#include "tests/kernels/cuda/host/stream.h"

namespace shale::testing {
namespace {

using cuda_on_host::Counts;

// A block owns this many rows: queries, or keys in the kernel of d_k and d_v. Its warps own 16 each.
constexpr int64_t kOwned = 64, kWarpsOfBlock = 4;

struct CountedSequence {
  int64_t S, H, D;

  // Returns how many rows of the other side all blocks of a head go through: those of n blocks 64, 128, ..., 64 n. So
  // a row is read (n + 1) / 2 times.
  int64_t passed() const { return kOwned * blocks() * (blocks() + 1) / 2; }
  int64_t blocks() const { return S / kOwned; }
  int64_t pairs() const { return S * (S + 1) / 2; }  // Of a query and a key that it sees, in a head.
  int64_t row() const { return 2 * D; }              // Bytes.
  int64_t matrix() const { return S * row(); }       // Bytes of a head.
  // Returns how many rows a block of backward goes through at a time: fewer where rows are long.
  int64_t columns() const { return D == 64 ? 64 : 32; }
  // Wide heads: warps load their own rows from shared memory for each tile of columns, and d_k and d_v have a kernel
  // each.
  bool wide() const { return D > 128; }
};

// Query heads of Qwen2.5 0.5B and 1.5B, and of Gemma 3 4B, that share keys and values.
const CountedSequence& Counted(int which) {
  static const CountedSequence* sequences = [] {
    const char* given = std::getenv("SHALE_COUNTED_LENGTH");
    const int64_t S = given == nullptr ? 128 : std::atoll(given);
    return new CountedSequence[]{{S, 7, 64}, {S, 6, 128}, {S, 2, 256}};
  }();
  return sequences[which];
}

template <class OpType>
Counts CountsOf(ReservedMemory& memory, const OpType& op) {
  cuda_on_host::Stream stream{.counts_arrays = true};
  const int64_t scratch_bytes = cuda::ScratchBytesOf(op);
  const Scratch scratch = {static_cast<std::byte*>(memory.Bytes(scratch_bytes)), scratch_bytes};
  const absl::Status status = cuda::Run(op, scratch, &stream);
  EXPECT_TRUE(status.ok()) << status;
  return stream.counts;
}

// Prints the counts of a token and head of queries, beside the bytes that no kernel can do without. Multiply-adds are
// those of a pair of a query and a key that it sees, as a multiple of D.
void PrintAttention(const char* what, const CountedSequence& c, int64_t needed, const Counts& counts) {
  const double tokens = static_cast<double>(c.S * c.H);
  absl::PrintF("| %s, D = %d, S = %d | %.0f | %.0f | %.0f | %.0f | %.1f | %.3f | %.1f | %.2f | %.1f |\n", what, c.D,
               c.S, static_cast<double>(needed) / tokens, static_cast<double>(counts.read_bytes) / tokens,
               static_cast<double>(counts.written_bytes) / tokens,
               static_cast<double>(counts.shared_accessed_bytes) / tokens,
               static_cast<double>(counts.accesses) / tokens / 32, static_cast<double>(counts.block_barriers) / tokens,
               static_cast<double>(counts.warp_operations) / tokens,
               static_cast<double>(counts.multiply_adds) / static_cast<double>(c.pairs() * c.H * c.D),
               static_cast<double>(counts.block_shared_bytes) / 1024);
}

void PrintAttentionHead() {
  absl::PrintF(
      "| op | must move | bytes read | bytes written | bytes of shared memory | accesses of a warp | barriers of a "
      "block | operations of a warp | products of a pair | KiB of shared memory of a block "
      "|\n|---|---|---|---|---|---|---|---|---|---|\n");
}

struct CountedAttention {
  ReservedMemory memory;
  AttentionForward forward;
  AttentionBackward backward;

  explicit CountedAttention(const CountedSequence& c) {
    const auto queries = [&] { return memory.Zeros(DType::kBFloat16, {1, c.S, c.H, c.D}); };
    const auto keys = [&] { return memory.Zeros(DType::kBFloat16, {1, c.S, 1, c.D}); };
    forward = {.q_BSHD = queries(), .k_BSGD = keys(), .v_BSGD = keys(), .out_BSHD = queries()};
    forward.lse_BHS = memory.Zeros(DType::kFloat32, {1, c.H, c.S});
    forward.scale = 0.125f;
    backward = {.q_BSHD = forward.q_BSHD, .k_BSGD = forward.k_BSGD, .v_BSGD = forward.v_BSGD};
    backward.out_BSHD = forward.out_BSHD;
    backward.lse_BHS = forward.lse_BHS;
    backward.d_out_BSHD = queries();
    backward.d_q_BSHD = queries();
    backward.d_k_BSGD = keys();
    backward.d_v_BSGD = keys();
    backward.scale = forward.scale;
  }
};

// Scores stay in registers: nothing of S x S is read or written. Queries are read once, and keys and values by every
// block whose queries see them. There are two products.
TEST(KernelCounts, AttentionForwardReadsQueriesOnceAndKeepsScoresInRegisters) {
  PrintAttentionHead();
  for (const int which : {0, 1, 2}) {
    const CountedSequence& c = Counted(which);
    CountedAttention attention(c);
    Counts f = CountsOf(attention.memory, attention.forward);
    PrintAttention("AttentionForward", c, c.H * (2 * c.matrix() + 4 * c.S) + 2 * c.matrix(), f);
    EXPECT_EQ(f.arrays["q"].read, c.H * c.matrix());
    EXPECT_EQ(f.arrays["k"].read, c.H * c.passed() * c.row());
    EXPECT_EQ(f.arrays["v"].read, c.H * c.passed() * c.row());
    EXPECT_EQ(f.read_bytes, c.H * (c.matrix() + 2 * c.passed() * c.row()));
    EXPECT_EQ(f.arrays["out"].written, c.H * c.matrix());
    EXPECT_EQ(f.written_bytes, c.H * (c.matrix() + 4 * c.S));
    EXPECT_EQ(f.multiply_adds, c.H * 2 * c.D * kOwned * c.passed());
    // One for the queries, unless these are wide, and two for each 64 keys.
    EXPECT_EQ(f.blocks, c.H * c.blocks());
    EXPECT_EQ(f.block_barriers, (c.wide() ? 0 : 1) * f.blocks + 2 * c.H * c.passed() / kOwned);
    // Queries go through shared memory: once, or if they are wide once for each 64 keys. Keys and values are stored
    // there, and each warp loads all of them.
    const int64_t loads = c.wide() ? c.passed() * c.row() : c.matrix();
    EXPECT_EQ(f.shared_accessed_bytes, c.H * (c.matrix() + loads + 2 * (1 + kWarpsOfBlock) * c.passed() * c.row()));
    // Four lanes share a row: two shuffles find its largest score, and at the end two its sum. A lane has two rows.
    EXPECT_EQ(f.warp_operations, kWarpsOfBlock * (4 * c.H * c.passed() / kOwned + 4 * f.blocks));
  }
}

// Of d_q, d_k and d_v each element has one owner, so that none is added to in memory. What that costs is counted here:
// a second kernel reads all again, and seven products in place of five. For wide heads it is three kernels and eight
// products.
TEST(KernelCounts, AttentionBackwardWritesItsGradientsOnceAndNothingElse) {
  PrintAttentionHead();
  for (const int which : {0, 1, 2}) {
    const CountedSequence& c = Counted(which);
    CountedAttention attention(c);
    Counts b = CountsOf(attention.memory, attention.backward);
    PrintAttention("AttentionBackward", c, c.H * (4 * c.matrix() + 4 * c.S) + 4 * c.matrix(), b);
    const int64_t passed_bytes = c.passed() * c.row();
    // The kernel of d_q reads queries and d_out once, and that of delta d_out and out. The kernel of d_k and d_v reads
    // queries and d_out for every 64 keys that they see, and keys and values once. That of d_v alone reads no values.
    const int64_t kernels = c.wide() ? 2 : 1;  // Of d_k and d_v.
    EXPECT_EQ(b.arrays["q"].read, c.H * (c.matrix() + kernels * passed_bytes));
    EXPECT_EQ(b.arrays["d_out"].read, c.H * (2 * c.matrix() + kernels * passed_bytes));
    EXPECT_EQ(b.arrays["out"].read, c.H * c.matrix());
    EXPECT_EQ(b.arrays["k"].read, c.H * passed_bytes + kernels * c.matrix());
    EXPECT_EQ(b.arrays["v"].read, c.H * passed_bytes + c.matrix());
    // Of a query, four lanes read both, and then a thread for each 64 keys that it sees.
    EXPECT_EQ(b.arrays["lse"].read, c.H * 4 * (4 * c.S + kernels * c.passed()));
    EXPECT_EQ(b.arrays["delta"].read, b.arrays["lse"].read);
    // No S x S: the gradients are written once, and a number for each query.
    EXPECT_EQ(b.written_bytes, c.H * (c.matrix() + 4 * c.S) + 2 * c.matrix());
    EXPECT_EQ(b.arrays["d_q"].written, c.H * c.matrix());
    EXPECT_EQ(b.arrays["d_k"].written, c.matrix());
    EXPECT_EQ(b.arrays["d_v"].written, c.matrix());
    EXPECT_EQ(b.multiply_adds, c.H * (c.wide() ? 8 : 7) * c.D * kOwned * c.passed());
    // In the kernel of d_q one for the queries, unless these are wide. Two for each tile of columns, but only one where
    // d_k and d_v have one kernel, which has two tiles of q and of d_out.
    const int64_t tiles = c.passed() / c.columns();
    EXPECT_EQ(b.block_barriers, c.H * ((c.wide() ? 0 : 1) * c.blocks() + (2 + (c.wide() ? 4 : 1)) * tiles));
    // For d_q a warp loads the keys twice and the values once. For d_k and d_v it loads queries and d_out twice, and
    // for each tile of them its keys and values again, and eight lanes of it load the facts of each query, which are
    // stored once. For d_k alone it loads d_out once, and for d_v alone both once, and of its own rows the keys.
    const int64_t own = tiles * kOwned * c.row(), facts = 16 * (1 + kWarpsOfBlock * 8) * c.passed();
    const int64_t for_d_q =
        c.H * (2 * c.matrix() + 2 * (c.wide() ? own : c.matrix()) + (2 + 3 * kWarpsOfBlock) * passed_bytes);
    const int64_t stored = (c.wide() ? 3 : 2) * c.matrix(), loads = c.wide() ? 3 + 2 : 4;
    const int64_t for_d_k = c.H * ((2 * kernels + loads * kWarpsOfBlock) * passed_bytes + (1 + kernels) * own);
    EXPECT_EQ(b.shared_accessed_bytes, for_d_q + stored + for_d_k + c.H * kernels * facts);
    EXPECT_EQ(b.warp_operations, 5 * c.H * c.S);  // Only delta is summed over lanes.
  }
}

}  // namespace
}  // namespace shale::testing
