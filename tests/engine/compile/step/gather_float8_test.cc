// GatherFloat8 on a program of about ten instructions, built by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "engine/compile/program/structure.h"
#include "engine/compile/step/passes.h"
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
      if (b.present()) AddCompute(MatMul{.a = b, .b = b, .scale_a_1 = scale, .scale_b_1 = scale});
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
  EXPECT_EQ(At<MatMul>(5).scale_b_1.where, quantizes.scales_Q.where);
  EXPECT_EQ(At<MatMul>(6).scale_b_1.where, quantizes.scales_Q.Slice(0, 1, 1).where);
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

}  // namespace
}  // namespace shale::testing
