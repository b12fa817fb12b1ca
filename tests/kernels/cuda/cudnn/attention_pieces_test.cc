// Tests which attention cuDNN can compute, and in which pieces.
#include "kernels/cuda/cudnn/attention_pieces.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/cuda/cudnn/attention_ops.h"

namespace shale::cuda {
namespace {

using testing::AttentionShape;
using testing::ForwardOf;
using testing::SymbolicAttention;

// Returns whether cuDNN takes `op`. Expects the same answer for both directions.
bool Taken(const AttentionBackward& op) {
  EXPECT_TRUE(Validate(op).ok()) << Validate(op);
  EXPECT_EQ(TakenByCudnn(op), TakenByCudnn(ForwardOf(op))) << AttentionKey::Of(op).ToString();
  return TakenByCudnn(op);
}

TEST(TakenByCudnnTest, TheWidthsOfOurModelsInBf16) {
  for (const int64_t width : {2, 8, 32, 40, 64, 72, 80, 96, 104, 128, 192, 256}) {
    const AttentionShape shape = {.batch = 2, .length = 128, .heads = 6, .groups = 2, .width = width};
    EXPECT_EQ(Taken(SymbolicAttention(shape)), width == 64 || width == 96 || width == 128) << width;
    EXPECT_FALSE(Taken(SymbolicAttention(shape, DType::kFloat32))) << width;
  }
}

TEST(TakenByCudnnTest, AnyWindowAndAnyNumberOfHeads) {
  for (const int64_t window : {0, 1, 100, 1000}) {
    EXPECT_TRUE(Taken(SymbolicAttention({.batch = 3, .length = 20, .heads = 7, .groups = 1, .window = window})));
    EXPECT_TRUE(Taken(SymbolicAttention({.batch = 1, .length = 20, .heads = 5, .groups = 5, .window = window})));
  }
}

TEST(TakenByCudnnTest, ACapOfTheScoresIsRefused) {
  AttentionBackward op = SymbolicAttention({.batch = 2, .length = 68, .heads = 2});
  op.cap = 50;
  EXPECT_FALSE(Taken(op));
}

TEST(TakenByCudnnTest, OnePositionIsRefusedAndRowsOfLseMustBeAligned) {
  EXPECT_FALSE(Taken(SymbolicAttention({.length = 1})));
  EXPECT_TRUE(Taken(SymbolicAttention({.length = 2})));  // Its only row begins where the buffer does.
  EXPECT_TRUE(Taken(SymbolicAttention({.batch = 1, .length = 3})));
  for (const int64_t length : {2, 3, 63, 65, 66}) {
    EXPECT_FALSE(Taken(SymbolicAttention({.batch = 2, .length = length, .heads = 2}))) << length;
  }
  EXPECT_TRUE(Taken(SymbolicAttention({.batch = 2, .length = 68, .heads = 2})));
}

TEST(TakenByCudnnTest, EveryRowMustBeginAtAMultipleOf16Bytes) {
  EXPECT_TRUE(Taken(SymbolicAttention({.batch = 2, .length = 8, .heads = 2, .gap = 8})));
  EXPECT_FALSE(Taken(SymbolicAttention({.batch = 2, .length = 8, .heads = 2, .gap = 4})));

  const AttentionBackward op = SymbolicAttention({.batch = 2, .length = 8, .heads = 2});
  int operands = 0;
  AttentionBackward::Visit(op, [&](absl::string_view name, const Tensor& operand, Access) {
    if (!operand.present()) return;
    AttentionBackward moved = op, bound = op;
    int i = 0, j = 0;
    AttentionBackward::Visit(moved, [&](absl::string_view, Tensor& t, Access) {
      if (t.present() && i++ == operands) t.where.offset_bytes += 8;
    });
    EXPECT_FALSE(TakenByCudnn(moved)) << std::string(name.data(), name.size());
    AttentionBackward::Visit(bound, [&](absl::string_view, Tensor& t, Access) {
      if (t.present()) t.data = reinterpret_cast<void*>(uintptr_t{4096} + (j++ == operands ? 8 : 0));
    });
    EXPECT_FALSE(TakenByCudnn(bound)) << std::string(name.data(), name.size());
    ++operands;
  });
  EXPECT_EQ(operands, kAttentionOperands);
}

TEST(TakenByCudnnTest, PackedDocumentsAreRefused) {
  AttentionBackward op = SymbolicAttention({.batch = 2, .length = 8, .heads = 2});
  EXPECT_TRUE(TakenByCudnn(op));
  op.position_ids_BS = Tensor::Contiguous(DType::kInt32, {2, 8});
  EXPECT_FALSE(TakenByCudnn(op));
  AttentionForward forward = ForwardOf(op);
  forward.position_ids_BS = op.position_ids_BS;
  EXPECT_FALSE(TakenByCudnn(forward));
}

TEST(TakenByCudnnTest, AKeyHeadMustFitTheLargestWorkspace) {
  EXPECT_TRUE(Taken(SymbolicAttention({.batch = 64, .length = 16384, .heads = 28, .groups = 4, .width = 128})));
  EXPECT_FALSE(Taken(SymbolicAttention({.batch = 1, .length = 32768, .heads = 28, .groups = 4, .width = 128})));
  EXPECT_TRUE(Taken(SymbolicAttention({.batch = 1, .length = 32768, .heads = 8, .groups = 8, .width = 128})));
  EXPECT_FALSE(Taken(SymbolicAttention({.batch = 1, .length = int64_t{1} << 20, .heads = 1, .groups = 1})));
}

TEST(AttentionPiecesTest, EverySequenceAndHeadIsInOnePieceThatFits) {
  for (const int64_t batch : {1, 2, 5, 8}) {
    for (const int64_t groups : {1, 3, 8}) {
      for (const int64_t per_group : {1, 2, 7}) {
        const AttentionBackward op =
            SymbolicAttention({.batch = batch, .length = 100, .heads = groups * per_group, .groups = groups});
        const AttentionKey whole = AttentionKey::Of(op);
        const int64_t bytes = WorkspaceBytes(whole);
        for (const int64_t limit : {bytes, bytes - 1, bytes / 2, bytes / 3, bytes / 10, bytes / 100, int64_t{0}}) {
          SCOPED_TRACE(whole.ToString() + " in " + std::to_string(limit));
          std::set<std::pair<int64_t, int64_t>> covered;
          std::set<AttentionKey> kinds;
          const std::vector<AttentionPiece> pieces = PiecesOf(whole, limit);
          for (const AttentionPiece& piece : pieces) {
            const AttentionBackward part = OpOf(op, piece);
            const AttentionKey key = AttentionKey::Of(part);
            EXPECT_TRUE(Validate(part).ok()) << Validate(part);
            EXPECT_TRUE(TakenByCudnn(part));
            EXPECT_TRUE(WorkspaceBytes(key) <= limit || key.batch * key.groups == 1);
            EXPECT_EQ(key.heads, key.groups * per_group);
            EXPECT_TRUE(piece.sequences == 1 || piece.groups == groups);
            for (int64_t b = 0; b < piece.sequences; ++b) {
              for (int64_t g = 0; g < piece.groups; ++g) {
                EXPECT_TRUE(covered.emplace(piece.first_sequence + b, piece.first_group + g).second);
              }
            }
            kinds.insert(key);
          }
          EXPECT_EQ(std::ssize(covered), batch * groups);
          // Each kind is a kernel to compile.
          EXPECT_LE(kinds.size(), 2u);
          EXPECT_EQ(pieces.size() == 1, limit == bytes || batch * groups == 1);
          EXPECT_TRUE(limit > 0 || std::ssize(pieces) == batch * groups);
        }
      }
    }
  }
}

TEST(AttentionPiecesTest, WithoutAnOrderOfSumsLongSequencesNeedNoPieces) {
  AttentionKey key = AttentionKey::Of(SymbolicAttention({.batch = 4, .length = 4096, .heads = 14, .groups = 2}));
  const int64_t limit = int64_t{256} << 20;
  EXPECT_EQ(std::ssize(PiecesOf(key, limit)), 8);
  key.deterministic = false;
  EXPECT_EQ(std::ssize(PiecesOf(key, limit)), 1);
}

TEST(AttentionKeyTest, AWindowAsLongAsTheSequenceIsNone) {
  AttentionBackward op = SymbolicAttention({.batch = 2, .length = 8, .heads = 2, .window = 8});
  EXPECT_EQ(AttentionKey::Of(op), AttentionKey::Of(SymbolicAttention({.batch = 2, .length = 8, .heads = 2})));
  op.window = 7;
  EXPECT_EQ(AttentionKey::Of(op).window, 7);
}

TEST(AttentionKeyTest, TheMaskMakesAnotherGraph) {
  AttentionBackward op = SymbolicAttention({.batch = 2, .length = 8, .heads = 2});
  const AttentionKey causal = AttentionKey::Of(op);
  op.causal = false;
  EXPECT_NE(AttentionKey::Of(op), causal);
  EXPECT_TRUE(Taken(op));
  EXPECT_EQ(WorkspaceBytes(AttentionKey::Of(op)), WorkspaceBytes(causal));
}

TEST(AttentionKeyTest, AStrideThatIsNeverUsedMakesNoOtherGraph) {
  const AttentionBackward op = SymbolicAttention({.batch = 1, .length = 8, .heads = 2, .groups = 1});
  AttentionBackward other = op;
  other.q_BSHD.strides[0] = other.d_out_BSHD.strides[0] = 12345 * 8;
  other.k_BSGD.strides[2] = 12345 * 8;
  EXPECT_EQ(AttentionKey::Of(op), AttentionKey::Of(other));
  other.q_BSHD.strides[1] *= 2;
  EXPECT_NE(AttentionKey::Of(op), AttentionKey::Of(other));
}

TEST(AttentionKeyTest, WherePackedHeadsLie) {
  const AttentionKey key =
      AttentionKey::Of(SymbolicAttention({.batch = 2, .length = 8, .heads = 4, .groups = 2, .width = 96, .window = 3}));
  EXPECT_EQ(key.ToString(), "attention backward B=2 S=8 H=4 G=2 D=96 window=3 scale=0.125");
  EXPECT_EQ(AttentionKey::Of(SymbolicAttention({.length = 8, .causal = false})).ToString(),
            "attention backward B=1 S=8 H=1 G=1 D=64 window=0 scale=0.125, not causal");
  AttentionKey unordered = AttentionKey::Of(SymbolicAttention({.length = 8}));
  unordered.deterministic = false;
  EXPECT_EQ(unordered.ToString(), "attention backward B=1 S=8 H=1 G=1 D=64 window=0 scale=0.125, not deterministic");
  const AttentionKey::Strides packed = {.sequence = 8 * 768, .position = 768, .head = 96},
                              apart = {.sequence = 8 * 384, .position = 384, .head = 96};
  for (const int operand : {kQ, kK, kV, kDQ, kDK, kDV}) EXPECT_EQ(key.strides[operand], packed) << operand;
  for (const int operand : {kOut, kDOut}) EXPECT_EQ(key.strides[operand], apart) << operand;
  EXPECT_EQ(key.strides[kLse], AttentionKey::Strides());
}

}  // namespace
}  // namespace shale::cuda
