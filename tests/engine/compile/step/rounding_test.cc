// RoundInBackward on a program of about ten instructions, built by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine/compile/program/program.h"
#include "engine/compile/step/passes.h"
#include "kernels/counter_random.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/matmul.h"
#include "tests/engine/compile/memory/program_builder.h"
#include "tests/engine/compile/step/program_listing.h"

namespace shale::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

// The gradient of a unit with matrices `a` of 16 x 8 and `b` of 64 x 8, and between them a norm of 8 and a bias of 5.
class RoundInBackwardTest : public ::testing::Test {
 protected:
  static constexpr int64_t kTokens = 3, kColumns = 8, kRowsOfA = 16, kRowsOfB = 64;
  static constexpr int64_t kNorm = 128, kBias = 256, kB = 384, kElements = 1024;

  Tensor In(BufferId buffer, std::initializer_list<int64_t> shape, int64_t begin = 0, DType dtype = DType::kFloat32) {
    Tensor t = Tensor::Contiguous(dtype, shape);
    t.where = {.symbol = buffer, .offset_bytes = begin * SizeOf(dtype)};
    return t;
  }
  Tensor Gradient(std::initializer_list<int64_t> shape, int64_t begin) { return In(gradient_, shape, begin); }
  Instruction& AddBackward(Op op) {
    Instruction& instruction = builder_.Add(kCompute, std::move(op));
    instruction.unit = 2;
    instruction.phase = Phase::kBackward;
    return instruction;
  }

  void Begin() {
    builder_.Touch(kCompute, {}, {builder_.Bytes(y_)});
    AddBackward(ZeroRanges{.x_N = Gradient({kElements}, 0),
                           .ranges = std::make_shared<const std::vector<ElementRange>>(std::vector<ElementRange>{
                               {kNorm + 8, kBias}, {kBias + 5, kB}, {kB + kRowsOfB * kColumns, kElements}})});
  }
  Instruction& ProductB() {
    return AddBackward(MatMul{.a = In(y_, {kTokens, kRowsOfB}),
                              .b = In(y_, {kTokens, kColumns}),
                              .c_MN = Gradient({kRowsOfB, kColumns}, kB),
                              .transpose_a = true});
  }
  Instruction& ProductA() {
    return AddBackward(MatMul{
        .a = In(y_, {kRowsOfA, kTokens}), .b = In(y_, {kTokens, kColumns}), .c_MN = Gradient({kRowsOfA, kColumns}, 0)});
  }
  void Vectors() {
    AddBackward(BiasBackward{.d_out_TN = In(y_, {kTokens, 5}), .d_bias_N = Gradient({5}, kBias)});
    AddBackward(BiasBackward{.d_out_TN = In(y_, {kTokens, 8}), .d_bias_N = Gradient({8}, kNorm)});
  }
  void Layered(int64_t micro_batches) {
    Begin();
    builder_.Loop(micro_batches);
    for (const bool is_a : {false, true}) {
      Instruction& product = is_a ? ProductA() : ProductB();
      product.first_iteration_differs = true;
      std::get<Op>(product.action).As<MatMul>()->accumulate = true;
    }
    builder_.Once();
    Vectors();
    End();
  }
  void End() {
    const Tensor number = In(builder_.AddBuffer("micro_batch", 8), {1}, 0, DType::kInt64);
    builder_.Add(kCopy, StepItemCopy{StepItem::kMicroBatch, number}).unit = 2;
    Instruction& rounding = AddBackward(Accumulate{.x_N = Gradient({kElements}, 0),
                                                   .total_N = In(sent_, {kElements}, 0, DType::kBFloat16),
                                                   .update_count_1 = In(count_, {1}, 0, DType::kInt64),
                                                   .micro_batch_1 = number,
                                                   .shard_stride = kElements,
                                                   .by_rank = true,
                                                   .stream = SentGradientStream(0)});
    rounding.phase = Phase::kReduce;
    Instruction& sends = builder_.Add(kReduce, Collective{.kind = CollectiveKind::kAllToAll,
                                                          .local = In(received_, {2, 512}, 0, DType::kBFloat16),
                                                          .full = In(sent_, {2, 512}, 0, DType::kBFloat16)});
    sends.unit = 2;
    sends.phase = Phase::kReduce;
  }

  std::vector<std::string> ListingAfterwards(int64_t piece_bytes) {
    program_ = builder_.Finish();
    RoundInBackward(program_, piece_bytes);
    EXPECT_TRUE(CheckStructure(program_).ok()) << CheckStructure(program_);
    for (InstructionId id = 1; id < std::ssize(program_.instructions); ++id) {  // The first one means nothing.
      const Op* op = std::get_if<Op>(&program_.instructions[id].action);
      EXPECT_TRUE(op == nullptr || Validate(*op).ok()) << Validate(*op);
    }
    return Listing(program_);
  }
  template <class Kind>
  const Kind& At(InstructionId id) {
    return *std::get<Op>(program_.instructions[id].action).As<Kind>();
  }
  // Expects that op `id` rounds elements [begin, begin + count) of the gradient, which lie in x.
  void ExpectRounds(InstructionId id, const Tensor& x, int64_t begin, int64_t count) {
    const auto& op = At<Accumulate>(id);
    EXPECT_EQ(op.x_N.where, x.where);
    EXPECT_EQ(op.x_N.elements(), count);
    EXPECT_EQ(op.part_begin, begin);
    EXPECT_EQ(op.total_N.where.offset_bytes, 2 * begin);
    EXPECT_EQ(program_.buffers[op.total_N.where.symbol].name, "sent");
    EXPECT_EQ(op.shard_stride, kElements);
    EXPECT_TRUE(op.by_rank);
  }

  ProgramBuilder builder_;
  const BufferId count_ = builder_.AddPersistent("count", 8), y_ = builder_.AddBuffer("y", 4096);
  const BufferId gradient_ = builder_.AddBuffer("gradient", 4 * kElements);
  const BufferId sent_ = builder_.AddBuffer("sent", 2 * kElements);
  const BufferId received_ = builder_.AddBuffer("received", 2 * kElements);
  StepProgram program_;
};

TEST_F(RoundInBackwardTest, MatricesAreRoundedInPiecesAndTheRestAtTheEnd) {
  builder_.Loop(3);
  Begin();
  ProductB();
  Vectors();
  ProductA();
  End();
  ASSERT_THAT(ListingAfterwards(/*piece_bytes=*/1100),
              ElementsAre("compute LayerNormForward", "compute ZeroRanges", "copy ToDevice micro_batch",
                          "compute MatMul", "compute Accumulate", "compute MatMul", "compute Accumulate",
                          "compute BiasBackward", "compute BiasBackward", "compute MatMul", "compute Accumulate",
                          "compute Accumulate", "compute ZeroRanges", "reduce AllToAll received"));
  // Of b, 34 rows would fit: two pieces of 32.
  for (const int piece : {0, 1}) {
    const auto& matmul = At<MatMul>(3 + 2 * piece);
    EXPECT_EQ(matmul.m(), 32);
    EXPECT_EQ(matmul.a.where.offset_bytes, 4 * 32 * piece);
    EXPECT_EQ(matmul.c_MN.where.offset_bytes, 0);
    EXPECT_EQ(program_.buffers[matmul.c_MN.where.symbol].slot_bytes, 4 * 32 * kColumns);
    ExpectRounds(4 + 2 * piece, matmul.c_MN, kB + 32 * kColumns * piece, 32 * kColumns);
    EXPECT_EQ(program_.instructions[4 + 2 * piece].phase, Phase::kBackward);
  }
  EXPECT_EQ(At<MatMul>(9).m(), kRowsOfA);
  ExpectRounds(10, At<MatMul>(9).c_MN, 0, kRowsOfA * kColumns);
  // Norm and bias stay together, with the gap between them.
  const Tensor rest = At<BiasBackward>(8).d_bias_N;
  EXPECT_EQ(rest.where.offset_bytes, 0);
  EXPECT_EQ(At<BiasBackward>(7).d_bias_N.where.symbol, rest.where.symbol);
  EXPECT_EQ(At<BiasBackward>(7).d_bias_N.where.offset_bytes, 4 * (kBias - kNorm));
  ExpectRounds(11, rest, kNorm, kBias + 5 - kNorm);
  EXPECT_EQ(program_.instructions[11].phase, Phase::kReduce);
  EXPECT_EQ(At<ZeroRanges>(1).x_N.where.symbol, rest.where.symbol);
  EXPECT_THAT(*At<ZeroRanges>(1).ranges, ElementsAre(ElementRange{8, kBias - kNorm}));
  EXPECT_EQ(program_.buffers[At<ZeroRanges>(12).x_N.where.symbol].name, "sent");
  EXPECT_THAT(*At<ZeroRanges>(12).ranges,
              ElementsAre(ElementRange{kBias + 5, kB}, ElementRange{kB + kRowsOfB * kColumns, kElements}));
  EXPECT_THAT(Names(program_), Not(Contains("gradient")));
}

// An eighth of the gradient is 512 bytes, which is 16 rows.
TEST_F(RoundInBackwardTest, PiecesAreNotSmallerThanAnEighth) {
  Begin();
  ProductB();
  Vectors();
  ProductA();
  End();
  ListingAfterwards(/*piece_bytes=*/1);
  int64_t matmuls = 0;
  for (const Instruction& instruction : program_.instructions) {
    const Op* op = std::get_if<Op>(&instruction.action);
    const auto* matmul = op == nullptr ? nullptr : op->As<MatMul>();
    if (matmul == nullptr) continue;
    EXPECT_EQ(matmul->m(), 16);
    ++matmuls;
  }
  EXPECT_EQ(matmuls, 1 + 4);
}

// Two matmuls add to b, as chunks of tokens do. Only a is rounded early.
TEST_F(RoundInBackwardTest, AGradientOfSeveralOpsStays) {
  builder_.Loop(3);
  Begin();
  ProductB();
  std::get<Op>(ProductB().action).As<MatMul>()->accumulate = true;
  Vectors();
  ProductA();
  End();
  ASSERT_THAT(
      ListingAfterwards(1 << 20),
      ElementsAre("compute LayerNormForward", "compute ZeroRanges", "compute MatMul", "compute MatMul",
                  "compute BiasBackward", "compute BiasBackward", "copy ToDevice micro_batch", "compute MatMul",
                  "compute Accumulate", "compute Accumulate", "compute ZeroRanges", "reduce AllToAll received"));
  for (const InstructionId id : {2, 3}) {
    EXPECT_EQ(At<MatMul>(id).c_MN.where.offset_bytes, 4 * (kB - kNorm));
    EXPECT_EQ(At<MatMul>(id).accumulate, id == 3);
  }
  ExpectRounds(9, At<BiasBackward>(5).d_bias_N, kNorm, kB + kRowsOfB * kColumns - kNorm);
  EXPECT_EQ(program_.buffers[At<Accumulate>(9).x_N.where.symbol].slot_bytes, 4 * (kB + kRowsOfB * kColumns - kNorm));
}

// LAYERED: the backward is a loop of its own, whose iterations add to the gradient. A loop that runs once writes it.
TEST_F(RoundInBackwardTest, AGradientThatIterationsAddToStays) {
  Layered(/*micro_batches=*/3);
  const std::string before = DumpProgram(builder_.Finish());
  ListingAfterwards(1 << 20);
  EXPECT_EQ(DumpProgram(program_), before);
}

TEST_F(RoundInBackwardTest, ALoopThatRunsOnceWritesItsGradient) {
  Layered(/*micro_batches=*/1);
  const std::string matmul = "compute MatMul", round = "compute Accumulate", bias = "compute BiasBackward";
  ASSERT_THAT(
      ListingAfterwards(1 << 20),
      ElementsAre("compute LayerNormForward", "compute ZeroRanges", "|", "copy ToDevice micro_batch", matmul, round,
                  matmul, round, "|", bias, bias, round, "compute ZeroRanges", "reduce AllToAll received"));
  for (const InstructionId id : {3, 5}) {
    EXPECT_FALSE(At<MatMul>(id).accumulate);
    EXPECT_FALSE(program_.instructions[id].first_iteration_differs);
  }
  EXPECT_THAT(Names(program_), Not(Contains("gradient")));
}

}  // namespace
}  // namespace shale::testing
