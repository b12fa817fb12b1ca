// GatherFloat8 and QuantizeOnce, each on a program of about ten instructions, built by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "engine/compile/program/program.h"
#include "engine/compile/step/passes.h"
#include "kernels/ops/flat.h"
#include "kernels/ops/float8.h"
#include "kernels/ops/matmul.h"
#include "tests/engine/compile/memory/program_builder.h"
#include "tests/engine/compile/step/program_listing.h"

namespace shale::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Not;

Tensor In(BufferId buffer, DType dtype, std::initializer_list<int64_t> shape, int64_t offset_bytes = 0) {
  Tensor t = Tensor::Contiguous(dtype, shape);
  t.where = {.symbol = buffer, .offset_bytes = offset_bytes};
  return t;
}

// Two of three ranks' matrices, in a group of 768 elements: `a` of 16 x 16, and `b` of 32 x 16.
class GatherFloat8Test : public ::testing::Test {
 protected:
  static constexpr int64_t kShard = 384, kFull = 2 * kShard, kOffsetOfB = 256;

  void SetUp() override { builder_.Touch(kCompute, {}, {builder_.Bytes(y_)}); }

  // Adds an all-gather of the group for the current visit.
  void Gather() {
    full_ = builder_.AddBuffer("gathered", 2 * kFull);
    builder_
        .Add(kGather, Collective{.kind = CollectiveKind::kAllGather,
                                 .local = In(w_, DType::kBFloat16, {kShard}),
                                 .full = In(full_, DType::kBFloat16, {kFull})})
        .unit = 3;
  }
  Tensor A() const { return In(full_, DType::kBFloat16, {16, 16}); }
  Tensor B() const { return In(full_, DType::kBFloat16, {32, 16}, 2 * kOffsetOfB); }

  // Adds ops that quantize a matrix, and a matmul that reads what they write. Returns the maximum.
  Tensor Quantize(const Tensor& x, bool as_it_lies, bool transposed, Tensor maximum = {}) {
    if (!maximum.present()) {
      maximum = In(builder_.AddBuffer("maximum", 4), DType::kFloat32, {1});
      AddCompute(AbsMax{.x_RC = x, .maximum_1 = maximum});
    }
    const Tensor scale = In(builder_.AddBuffer("scale", 4), DType::kFloat32, {1});
    QuantizeFloat8 op{.x_RC = x, .maximum_1 = maximum, .scale_1 = scale};
    const auto form = [&](int64_t rows, int64_t columns) {
      return In(builder_.AddBuffer("form", rows * columns), DType::kFloat8E4M3, {rows, columns});
    };
    if (as_it_lies) op.out_RC = form(x.dim(0), x.dim(1));
    if (transposed) op.transposed_CR = form(x.dim(1), x.dim(0));
    AddCompute(op);
    for (const Tensor& b : {op.out_RC, op.transposed_CR}) {
      if (b.present()) AddCompute(MatMul{.a = b, .b = b, .scale_a = scale, .scale_b = scale});
    }
    return maximum;
  }
  void AddCompute(Op op) { builder_.Add(kCompute, std::move(op)).unit = 3; }

  std::vector<std::string> ListingAfterwards(MemoryKind memory = MemoryKind::kDevice, int ranks = 2) {
    absl::StatusOr<ShardLayout> layout = ShardLayout::Create({{"a", {16, 16}}, {"b", {32, 16}}}, ranks);
    EXPECT_TRUE(layout.ok()) << layout.status();
    const Mesh mesh{.shard = ranks};
    state_.groups.push_back(
        {.placement = GroupPlacement(*std::move(layout), Placement::Of(Strategy::kFullShard, false, mesh)),
         .own_weight = In(w_, DType::kBFloat16, {kShard}),
         .float8 = true});
    program_ = builder_.Finish();
    program_.buffers[w_].memory = memory;
    GatherFloat8(program_, state_);
    if (memory == MemoryKind::kDevice) {
      EXPECT_TRUE(CheckStructure(program_).ok()) << CheckStructure(program_);
    }
    return Listing(program_);
  }
  template <class Kind>
  const Kind& At(InstructionId id) {
    return *std::get<Op>(program_.instructions[id].action).As<Kind>();
  }

  ProgramBuilder builder_;
  const BufferId w_ = builder_.AddPersistent("w", 2 * kShard);
  const BufferId y_ = builder_.AddBuffer("y", 32);
  BufferId full_ = -1;
  JobState state_;
  StepProgram program_;
};

TEST_F(GatherFloat8Test, RanksQuantizeTheirShardsOnceAndGatherCodes) {
  builder_.Loop(3);
  Gather();
  const Tensor maximum = Quantize(A(), true, false);
  Quantize(B(), true, false);
  Gather();  // For backward.
  Quantize(A(), false, true, maximum);
  Quantize(B(), true, true);
  ASSERT_THAT(ListingAfterwards(), ElementsAre("compute QuantizeShard", "gather AllGather weights.maxima",
                                               "compute QuantizeShard", "compute LayerNormForward", "|",  //
                                               "gather AllGather w.codes", "compute MatMul", "compute MatMul",
                                               "gather AllGather w.codes", "compute TransposeFloat8", "compute MatMul",
                                               "compute TransposeFloat8", "compute MatMul", "compute MatMul"));
  const auto& finds = At<QuantizeShard>(0);
  EXPECT_EQ(finds.stage, QuantizeShard::Stage::kMaxima);
  EXPECT_EQ(finds.weight_P.where.symbol, w_);
  EXPECT_THAT(*finds.parameters, ElementsAre(ElementRange{0, 256}, ElementRange{256, 768}));
  EXPECT_EQ(finds.shard_stride, kShard);
  const auto& quantizes = At<QuantizeShard>(2);
  EXPECT_EQ(quantizes.stage, QuantizeShard::Stage::kQuantize);
  EXPECT_EQ(quantizes.maxima_WQ.dim(0), 2);
  EXPECT_EQ(quantizes.out_P.elements(), kShard);
  for (const InstructionId id : {4, 7}) {
    const auto& gather = std::get<Collective>(program_.instructions[id].action);
    EXPECT_EQ(gather.local.where, quantizes.out_P.where);
    EXPECT_EQ(program_.buffers[gather.full.where.symbol].slot_bytes, kFull);
  }
  const BufferId forward = std::get<Collective>(program_.instructions[4].action).full.where.symbol;
  EXPECT_EQ(At<MatMul>(5).b.where, (Location{.symbol = forward}));
  EXPECT_EQ(At<MatMul>(6).b.where, (Location{.symbol = forward, .offset_bytes = kOffsetOfB}));
  EXPECT_EQ(At<MatMul>(5).scale_b.where, quantizes.scales_Q.where);
  EXPECT_EQ(At<MatMul>(6).scale_b.where, quantizes.scales_Q.Slice(0, 1, 1).where);
  const BufferId backward = std::get<Collective>(program_.instructions[7].action).full.where.symbol;
  EXPECT_EQ(At<TransposeFloat8>(8).x_RC.where, (Location{.symbol = backward}));
  EXPECT_EQ(At<MatMul>(9).b.where, At<TransposeFloat8>(8).y_CR.where);
  EXPECT_EQ(At<MatMul>(11).b.where, (Location{.symbol = backward, .offset_bytes = kOffsetOfB}));
  EXPECT_EQ(program_.instructions[8].unit, 3);
  EXPECT_THAT(Names(program_), Not(::testing::Contains("maximum")));
  EXPECT_THAT(Names(program_), Not(::testing::Contains("scale")));
}

TEST_F(GatherFloat8Test, AGroupWithOtherReadersStays) {
  Gather();
  Quantize(A(), true, false);
  AddCompute(MatMul{.a = B(), .b = B()});
  EXPECT_THAT(ListingAfterwards(), ElementsAre("compute LayerNormForward", "gather AllGather w", "compute AbsMax",
                                               "compute QuantizeFloat8", "compute MatMul", "compute MatMul"));
}

TEST_F(GatherFloat8Test, APartOfAParameterKeepsItsOwnScale) {
  Gather();
  Quantize(B().Slice(0, 0, 16), true, false);
  EXPECT_THAT(ListingAfterwards(), Each(Not("compute QuantizeShard")));
}

TEST_F(GatherFloat8Test, WeightsInHostMemoryStay) {
  Gather();
  Quantize(A(), true, false);
  EXPECT_THAT(ListingAfterwards(MemoryKind::kHost), Each(Not("compute QuantizeShard")));
}

// QuantizeOnce.

class QuantizeOnceTest : public ::testing::Test {
 protected:
  // Adds the ops of a visit that quantize matrix `x`, and a matmul that reads what they write.
  void Quantize(int unit, BufferId x, bool finds_maximum, bool transposed) {
    Tensor matrix = Tensor::Contiguous(DType::kBFloat16, {4, 4});
    matrix.where.symbol = x;
    const auto tensor = [](BufferId buffer, DType dtype, std::initializer_list<int64_t> shape) {
      Tensor t = Tensor::Contiguous(dtype, shape);
      t.where.symbol = buffer;
      return t;
    };
    if (finds_maximum) {
      maximum_ = tensor(builder_.AddBuffer("maximum", 4, slots_), DType::kFloat32, {1});
      builder_.Add(kCompute, Op(AbsMax{.x_RC = matrix, .maximum_1 = maximum_})).unit = unit;
    }
    const Tensor scale = tensor(builder_.AddBuffer("scale", 4, slots_), DType::kFloat32, {1});
    const Tensor form =
        tensor(builder_.AddBuffer(transposed ? "transposed" : "fp8", 16, slots_), DType::kFloat8E4M3, {4, 4});
    QuantizeFloat8 op{.x_RC = matrix, .maximum_1 = maximum_, .scale_1 = scale};
    (transposed ? op.transposed_CR : op.out_RC) = form;
    builder_.Add(kCompute, Op(op)).unit = unit;
    builder_
        .Add(kCompute, Op(MatMul{.a = form,
                                 .b = form,
                                 .c_MN = tensor(y_, DType::kBFloat16, {4, 4}),
                                 .scale_a = scale,
                                 .scale_b = scale,
                                 .transpose_b = true}))
        .unit = unit;
  }
  std::vector<std::string> ListingAfterwards() {
    program_ = builder_.Finish();
    EXPECT_TRUE(QuantizeOnce(program_).ok());
    EXPECT_TRUE(CheckStructure(program_).ok()) << CheckStructure(program_);
    return Listing(program_);
  }
  const QuantizeFloat8& QuantizeAt(InstructionId id) {
    return *std::get<Op>(program_.instructions[id].action).As<QuantizeFloat8>();
  }
  const MatMul& MatMulAt(InstructionId id) { return *std::get<Op>(program_.instructions[id].action).As<MatMul>(); }

  ProgramBuilder builder_;
  const BufferId w_ = builder_.AddPersistent("w", 32), v_ = builder_.AddPersistent("v", 32);
  BufferId y_ = builder_.AddBuffer("y", 32);
  int64_t slots_ = 1;
  Tensor maximum_;
  StepProgram program_;
};

TEST_F(QuantizeOnceTest, WeightsThatALoopDoesNotChangeAreQuantizedBeforeIt) {
  builder_.Touch(kCompute, {}, {builder_.Bytes(y_)});
  builder_.Loop(3);
  Quantize(0, w_, true, false);
  const Tensor of_w = maximum_;
  Quantize(1, v_, true, false);
  maximum_ = of_w;
  Quantize(0, w_, false, true);  // Backward.
  EXPECT_THAT(ListingAfterwards(),
              ElementsAre("compute LayerNormForward", "compute AbsMax", "compute QuantizeFloat8", "compute AbsMax",
                          "compute QuantizeFloat8", "|", "compute MatMul", "compute MatMul", "compute MatMul"));
  // One op writes both forms of w, with one scale.
  const QuantizeFloat8& w = QuantizeAt(2);
  EXPECT_EQ(w.x_RC.where.symbol, w_);
  EXPECT_EQ(MatMulAt(5).a.where, w.out_RC.where);
  EXPECT_EQ(MatMulAt(7).a.where, w.transposed_CR.where);
  EXPECT_EQ(MatMulAt(5).scale_a.where, w.scale_1.where);
  EXPECT_EQ(MatMulAt(7).scale_a.where, w.scale_1.where);
  EXPECT_EQ(MatMulAt(6).a.where, QuantizeAt(4).out_RC.where);
  EXPECT_FALSE(QuantizeAt(4).transposed_CR.present());
  for (InstructionId id = 1; id < 5; ++id) {
    EXPECT_EQ(program_.instructions[id].unit, -1);
    EXPECT_EQ(program_.instructions[id].micro_batch, -1);
    EXPECT_EQ(program_.instructions[id].phase, Phase::kBegin);
  }
}

TEST_F(QuantizeOnceTest, InLayeredEachLoopQuantizesWhatItReads) {
  slots_ = 3;  // One for each micro-batch, until they share one.
  builder_.Touch(kCompute, {}, {builder_.Bytes(y_)});
  builder_.Loop(3);
  Quantize(4, w_, true, false);
  builder_.Once();
  builder_.Touch(kCompute, {}, {builder_.Bytes(y_)});
  builder_.Loop(3);
  Quantize(4, w_, false, true);
  const std::string op = "compute LayerNormForward";
  EXPECT_THAT(ListingAfterwards(), ElementsAre(op, "compute AbsMax", "compute QuantizeFloat8", "|", "compute MatMul",
                                               "|", op, "compute QuantizeFloat8", "|", "compute MatMul"));
  EXPECT_EQ(QuantizeAt(5).maximum_1.where, QuantizeAt(2).maximum_1.where);
  EXPECT_FALSE(QuantizeAt(2).transposed_CR.present());
  EXPECT_FALSE(QuantizeAt(5).out_RC.present());
  EXPECT_EQ(program_.instructions[5].unit, 4);
  for (const Buffer& buffer : program_.buffers) EXPECT_EQ(buffer.slots, 1) << buffer.name;
}

// Each form of a weight with blocks of scales has scales of its own, and nothing looks for a maximum.
TEST_F(QuantizeOnceTest, TheFormsOfAWeightInBlocksKeepTheirScales) {
  builder_.Touch(kCompute, {}, {builder_.Bytes(y_)});
  builder_.Loop(3);
  QuantizeFloat8 op{.x_RC = In(w_, DType::kBFloat16, {4, 4}), .scales = Float8Scales::kBlocks};
  op.out_RC = In(builder_.AddBuffer("fp8", 16), DType::kFloat8E4M3, {4, 4});
  op.out_scales = In(builder_.AddBuffer("scales", 16), DType::kFloat32, {1, 4});
  builder_.Add(kCompute, Op(op)).unit = 0;
  builder_.Add(kCompute, Op(Copy{.from = op.out_scales, .to = In(y_, DType::kFloat32, {1, 4})})).unit = 0;
  QuantizeFloat8 transposed{.x_RC = op.x_RC, .scales = op.scales};
  transposed.transposed_CR = In(builder_.AddBuffer("transposed", 16), DType::kFloat8E4M3, {4, 4});
  transposed.transposed_scales = In(builder_.AddBuffer("transposed.scales", 16), DType::kFloat32, {1, 4});
  builder_.Add(kCompute, Op(transposed)).unit = 0;
  builder_.Add(kCompute, Op(Copy{.from = transposed.transposed_scales, .to = In(y_, DType::kFloat32, {1, 4})})).unit =
      0;
  EXPECT_THAT(ListingAfterwards(),
              ElementsAre("compute LayerNormForward", "compute QuantizeFloat8", "|", "compute Copy", "compute Copy"));
  const QuantizeFloat8& w = QuantizeAt(1);
  EXPECT_EQ(w.scales, Float8Scales::kBlocks);
  EXPECT_FALSE(w.maximum_1.present());
  EXPECT_TRUE(w.out_RC.present() && w.transposed_CR.present());
  const auto from = [&](InstructionId id) {
    return std::get<Op>(program_.instructions[id].action).As<Copy>()->from.where;
  };
  EXPECT_EQ(from(2), w.out_scales.where);
  EXPECT_EQ(from(3), w.transposed_scales.where);
}

// Forward that runs again writes the buffers of the first one.
TEST_F(QuantizeOnceTest, WhatRunsAgainIsReadFromWhereItIs) {
  for (const bool layered : {false, true}) {
    builder_ = ProgramBuilder();
    const BufferId w = builder_.AddPersistent("w", 32);
    y_ = builder_.AddBuffer("y", 32);
    builder_.Touch(kCompute, {}, {builder_.Bytes(y_)});
    builder_.Loop(3);
    Quantize(0, w, true, false);
    std::vector<Instruction> again = builder_.program().instructions;
    if (layered) {
      builder_.Once();
      builder_.Touch(kCompute, {}, {builder_.Bytes(y_)});
      builder_.Loop(3);
    }
    for (size_t i = 1; i < again.size(); ++i) builder_.program().instructions.push_back(again[i]);
    const std::string op = "compute LayerNormForward", find = "compute AbsMax", quantize = "compute QuantizeFloat8",
                      multiply = "compute MatMul";
    if (layered) {
      EXPECT_THAT(ListingAfterwards(),
                  ElementsAre(op, find, quantize, "|", multiply, "|", op, find, quantize, "|", multiply));
    } else {
      EXPECT_THAT(ListingAfterwards(), ElementsAre(op, find, quantize, "|", multiply, multiply));
    }
    const InstructionId last = static_cast<InstructionId>(program_.instructions.size()) - 1;
    EXPECT_EQ(MatMulAt(last).a.where, QuantizeAt(2).out_RC.where);
    EXPECT_EQ(MatMulAt(last).scale_a.where, QuantizeAt(2).scale_1.where);
  }
}

TEST_F(QuantizeOnceTest, WhatChangesFromOneMicroBatchToTheNextStays) {
  const BufferId x = builder_.AddBuffer("x", 64), shard = builder_.AddPersistent("shard", 32);
  builder_.Touch(kCompute, {}, {builder_.Bytes(y_)});
  builder_.Loop(3);
  builder_
      .Add(kGather, Collective{.kind = CollectiveKind::kAllGather,
                               .local = In(shard, DType::kFloat32, {8}),
                               .full = In(x, DType::kFloat32, {16})})
      .unit = 0;
  Quantize(0, x, true, false);  // A gathered weight.
  builder_.Once();
  Quantize(0, w_, true, false);  // Runs once anyway.
  const StepProgram before = builder_.Finish();
  ListingAfterwards();
  EXPECT_EQ(DumpProgram(program_), DumpProgram(before));
}

}  // namespace
}  // namespace shale::testing
