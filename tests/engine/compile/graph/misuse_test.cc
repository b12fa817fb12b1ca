// Tests that every misuse of the graph builder ends in a Status that names it, and that nothing aborts on the way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "engine/api/layers.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/rope.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

constexpr Initializer kNormal{Initializer::Kind::kNormal, 0.02};
constexpr GraphOptions kOptions{.micro_batch = 2, .sequence_length = 3, .vocabulary = 5};
// T tokens, C width, V vocabulary.
constexpr int64_t T = 6, C = 4, V = 5;

// A model of three units that is right. A test replaces one of its pieces by a wrong one.
struct Pieces {
  GraphBuilder b{kOptions};
  GroupId group = b.AddGroup("all");
  ParameterId table = b.AddParameter(group, "table", {V, C}, kNormal);
  ParameterId up = b.AddParameter(group, "up", {C, C}, kNormal);
  ParameterId head = b.AddParameter(group, "head", {V, C}, kNormal);
  Tensor embedded;  // The output of the first unit.
};

using Body = std::function<void(Pieces&)>;

void First(Pieces& p) {
  p.b.BeginUnit("first");
  p.embedded = Embedding(p.b, p.table, std::nullopt);
  p.b.EndUnit(p.embedded);
}
void Middle(Pieces& p) {
  p.b.BeginUnit("middle", 0);
  p.b.EndUnit(Linear(p.b, p.b.UnitInput(), p.up, std::nullopt, "up"));
}
void Last(Pieces& p) {
  p.b.BeginUnit("last");
  LinearCrossEntropy(p.b, p.b.UnitInput(), p.head, std::nullopt);
  p.b.EndLastUnit();
}

std::string ErrorOf(const Body& first, const Body& middle, const Body& last) {
  Pieces p;
  first(p);
  middle(p);
  last(p);
  const absl::Status status = p.b.Finish().status();
  EXPECT_EQ(status.code(), status.ok() ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument) << status;
  return std::string(status.message());
}
std::string ErrorOfMiddle(const Body& middle) { return ErrorOf(First, middle, Last); }
// Puts a layer between BeginUnit and EndUnit of the middle unit.
std::string ErrorOfLayer(const std::function<Tensor(GraphBuilder&, const Tensor& x, Pieces&)>& layer) {
  return ErrorOfMiddle([&](Pieces& p) {
    p.b.BeginUnit("middle", 0);
    const Tensor x = Linear(p.b, p.b.UnitInput(), p.up, std::nullopt, "up");
    p.b.EndUnit(layer(p.b, x, p));
  });
}
void Nothing(Pieces&) {}

TEST(Misuse, TheRightModelIsNone) {
  EXPECT_EQ(ErrorOf(First, Middle, Last), "");
  EXPECT_EQ(ErrorOfLayer([](GraphBuilder& b, const Tensor& x, Pieces&) {
              const Tensor halves = SplitLast(b, Slice(b, Reshape(b, x, {T, C}), 1, 0, C), 2);
              EXPECT_EQ(SplitFirst(b, halves, 2).ToString(), "f32[2, 3, 2, 2]");
              return x;
            }),
            "");
}

TEST(Misuse, AUnitWithoutAnEnd) {
  EXPECT_THAT(ErrorOfMiddle([](Pieces& p) {
                p.b.BeginUnit("middle");
                Linear(p.b, p.b.UnitInput(), p.up, std::nullopt, "up");
              }),
              HasSubstr("unit last begins before unit middle was ended"));
  EXPECT_THAT(ErrorOf(First, Middle, [](Pieces& p) { p.b.BeginUnit("last"); }),
              HasSubstr("unit last has no end: call EndUnit, or EndLastUnit"));
}

TEST(Misuse, ALayerOutsideOfAUnit) {
  EXPECT_THAT(ErrorOfMiddle([](Pieces& p) { p.b.UnitInput(); }), HasSubstr("outside of a unit: call BeginUnit first"));
  EXPECT_THAT(ErrorOfMiddle([](Pieces& p) { Linear(p.b, p.embedded, p.up, std::nullopt, "up"); }),
              HasSubstr("outside of a unit"));
  EXPECT_THAT(ErrorOfMiddle([](Pieces& p) { p.b.EndUnit(p.embedded); }), HasSubstr("EndUnit is called outside"));
  EXPECT_THAT(ErrorOfMiddle([](Pieces& p) { p.b.EndLastUnit(); }), HasSubstr("EndLastUnit is called outside"));
}

TEST(Misuse, AParameterThatNoUnitUses) {
  EXPECT_EQ(ErrorOfMiddle(Nothing), "parameter up is never used: use it in a unit, or do not add it");
}

TEST(Misuse, AParameterOnWhichTheLossDoesNotDepend) {
  EXPECT_EQ(ErrorOfMiddle([](Pieces& p) {
              p.b.BeginUnit("middle");
              Linear(p.b, p.b.UnitInput(), p.up, std::nullopt, "forgotten");
              p.b.EndUnit(Linear(p.b, p.b.UnitInput(), p.b.AddParameter(p.group, "down", {C, C}, kNormal), std::nullopt,
                                 "down"));
            }),
            "parameter up has no gradient: the loss does not depend on what is computed with it");
}

TEST(Misuse, AParameterThatTheBuilderDoesNotHave) {
  EXPECT_THAT(
      ErrorOfLayer([](GraphBuilder& b, const Tensor& x, Pieces&) { return Linear(b, x, 17, std::nullopt, "down"); }),
      HasSubstr("unit middle uses parameter number 17"));
  EXPECT_THAT(ErrorOfMiddle([](Pieces& p) { p.b.AddParameter(3, "more", {C}, kNormal); }),
              HasSubstr("parameter more is added to group 3"));
}

TEST(Misuse, AGroupWithoutParameters) {
  EXPECT_EQ(ErrorOf(
                [](Pieces& p) {
                  p.b.AddGroup("none");
                  First(p);
                },
                Middle, Last),
            "group none has no parameters");
}

TEST(Misuse, AnActivationOfAnotherUnit) {
  EXPECT_EQ(
      ErrorOfLayer([](GraphBuilder& b, const Tensor& x, Pieces& p) { return AddResidual(b, x, p.embedded, "sum"); }),
      "unit middle: AddResidual reads first.out of unit first; a unit reads its own tensors, and the output of "
      "the unit before through UnitInput()");
  EXPECT_THAT(ErrorOfMiddle([](Pieces& p) {
                p.b.BeginUnit("middle");
                Linear(p.b, p.b.UnitInput(), p.up, std::nullopt, "up");
                p.b.EndUnit(p.embedded);
              }),
              HasSubstr("unit middle is ended with first.out of unit first as its output"));
  // An op that a layer of one's own emits.
  EXPECT_THAT(ErrorOfLayer([](GraphBuilder& b, const Tensor& x, Pieces& p) {
                const Tensor y = b.NewActivation("y", x.dtype, {T, C});
                b.Emit(GeluForward{.x_TF = p.embedded, .y_TF = y});
                return y;
              }),
              HasSubstr("of GeluForward is first.out of unit first, which this unit must not use"));
}

TEST(Misuse, AValueOfAnotherBuilder) {
  Pieces other;
  other.b.BeginUnit("elsewhere");
  const Tensor foreign = Embedding(other.b, other.table, std::nullopt);
  EXPECT_THAT(ErrorOfLayer([&](GraphBuilder& b, const Tensor&, Pieces&) { return GeluErf(b, foreign); }),
              HasSubstr("unit middle: Gelu reads a tensor of another GraphBuilder"));
  EXPECT_THAT(ErrorOfLayer([&](GraphBuilder&, const Tensor&, Pieces&) { return foreign; }),
              HasSubstr("is ended with a tensor of another GraphBuilder"));
}

TEST(Misuse, AnAbsentTensor) {
  EXPECT_THAT(ErrorOfLayer([](GraphBuilder&, const Tensor&, Pieces&) { return Tensor(); }),
              HasSubstr("unit middle is ended with an absent tensor"));
  for (const auto& layer : std::vector<std::function<Tensor(GraphBuilder&, Tensor)>>{
           [](GraphBuilder&b, const Tensor&x) { return SwiGlu(b, x); },
           [](GraphBuilder&b, const Tensor&x) { return Norm(b, x, {.weight = 1}, "norm"); },
           [](GraphBuilder&b, const Tensor&x) { return AddNorm(b, x, x, {.weight = 1}, "sum", "norm").second; },
           [](GraphBuilder&b, const Tensor&x) { return HeadNorm(b, x, {.weight = 1}, x, "norm"), x; },
           [](GraphBuilder&b, const Tensor&x) { return ApplyRope(b, x, 1e4, {}), x; },
           [](GraphBuilder&b, const Tensor&x) { return Attention(b, x, x, x, 0); },
           [](GraphBuilder&b, const Tensor&x) { return BidirectionalAttention(b, x, x, x); },
           [](GraphBuilder&b, const Tensor&x) { return LinearCrossEntropy(b, x, 1, std::nullopt), x; }}) {
    EXPECT_THAT(ErrorOfLayer([&](GraphBuilder& b, const Tensor&, Pieces&) { return layer(b, Tensor()); }),
                HasSubstr("reads an absent tensor"));
  }
}

TEST(Misuse, WrongShapes) {
  EXPECT_THAT(ErrorOfLayer([](GraphBuilder& b, const Tensor& x, Pieces& p) {
                return Linear(b, x, p.b.AddParameter(p.group, "wide", {C, 7}, kNormal), std::nullopt, "down");
              }),
              HasSubstr("unit middle: MatMul"));
  EXPECT_THAT(ErrorOfLayer([](GraphBuilder& b, const Tensor& x, Pieces&) { return Attention(b, x, x, x, 0); }),
              HasSubstr("unit middle: Attention reads middle.up f32[6, 4]; wanted 4 dimensions"));
  EXPECT_THAT(
      ErrorOfLayer([](GraphBuilder& b, const Tensor& x, Pieces&) { return BidirectionalAttention(b, x, x, x); }),
      HasSubstr("unit middle: BidirectionalAttention reads middle.up f32[6, 4]; wanted 4 dimensions"));
  EXPECT_THAT(ErrorOfLayer([](GraphBuilder& b, const Tensor& x, Pieces&) {
                return Reshape(b, x, {T, 5});
              }),
              HasSubstr("a view of f32[6, 4] does not fit: Reshape to [6, 5]"));
  EXPECT_THAT(ErrorOfLayer([](GraphBuilder& b, const Tensor& x, Pieces&) { return Slice(b, x, 1, 2, 3); }),
              HasSubstr("Slice of 3 from 2 on along dimension 1"));
  EXPECT_THAT(ErrorOfLayer([](GraphBuilder& b, const Tensor& x, Pieces&) { return SplitLast(b, x, 3); }),
              HasSubstr("SplitLast into 3"));
  EXPECT_THAT(ErrorOfLayer([](GraphBuilder& b, const Tensor& x, Pieces&) { return SplitFirst(b, x, 4); }),
              HasSubstr("SplitFirst into 4"));
  // Only a full activation may be the output of a unit.
  EXPECT_THAT(ErrorOfLayer([](GraphBuilder& b, const Tensor& x, Pieces&) { return Slice(b, x, 1, 0, 2); }),
              HasSubstr("unit middle is ended with middle.up f32[6, 2] as its output"));
  EXPECT_THAT(ErrorOfMiddle([](Pieces& p) {
                p.b.AddParameter(p.group, "none", {C, 0}, kNormal);
              }),
              HasSubstr("parameter none has the shape [4, 0]"));
  constexpr int64_t kHuge = int64_t{1} << 40;
  EXPECT_THAT(ErrorOfMiddle([](Pieces& p) {
                p.b.AddParameter(p.group, "huge", {kHuge, kHuge}, kNormal);
              }),
              HasSubstr("parameter huge has the shape [1099511627776, 1099511627776]"));
  EXPECT_THAT(ErrorOfLayer([](GraphBuilder& b, const Tensor& x, Pieces&) {
                return b.NewActivation("none", x.dtype, {T, -1});
              }),
              HasSubstr("activation middle.none has the shape [6, -1]"));
}

TEST(Misuse, APartOfAnActivation) {
  EXPECT_EQ(ErrorOfLayer([](GraphBuilder& b, const Tensor& x, Pieces& p) {
              const ParameterId half = b.AddParameter(p.group, "half", {C, C / 2}, kNormal);
              return Linear(b, Slice(b, x, 1, 0, C / 2), half, std::nullopt, "down");
            }),
            "unit middle: a layer reads a part of middle.up; only Attention, HeadNorm and ApplyRope can read a part of "
            "an activation");
}

TEST(Misuse, RowsWithoutATarget) {
  EXPECT_EQ(
      ErrorOf(First, Middle,
              [](Pieces& p) {
                const ParameterId wide = p.b.AddParameter(p.group, "wide", {V, 3 * C}, kNormal);
                p.b.BeginUnit("last");
                LinearCrossEntropy(p.b, Reshape(p.b, p.b.UnitInput(), {2, 3 * C}), wide, std::nullopt);
                p.b.EndLastUnit();
              }),
      "LinearCrossEntropy: x has 2 rows; wanted 6, one for every token. A model with a row for every sequence sets "
      "last_target_only");
}

TEST(Misuse, NoLoss) {
  EXPECT_EQ(ErrorOf(First, Middle, Nothing), "unit middle is the last one: end it with a loss and EndLastUnit");
  EXPECT_EQ(ErrorOf(Nothing, Nothing, Nothing), "a model needs at least one unit");
  GraphBuilder b({.mode = GraphMode::kEvaluation, .vocabulary = V});
  const ParameterId table = b.AddParameter(b.AddGroup("all"), "table", {V, C}, kNormal);
  b.BeginUnit("only");
  Embedding(b, table, std::nullopt);
  b.EndLastUnit();
  EXPECT_THAT(std::string(b.Finish().status().message()), HasSubstr("the model has no loss"));
}

TEST(Misuse, TwoLosses) {
  EXPECT_EQ(ErrorOf(First, Middle,
                    [](Pieces& p) {
                      p.b.BeginUnit("last");
                      LinearCrossEntropy(p.b, p.b.UnitInput(), p.head, std::nullopt);
                      LinearCrossEntropy(p.b, p.b.UnitInput(), p.head, std::nullopt);
                      p.b.EndLastUnit();
                    }),
            "the model has two losses, in unit last and in unit last; keep one");
}

TEST(Misuse, ALossBeforeTheLastUnit) {
  EXPECT_EQ(ErrorOf(
                [](Pieces& p) {
                  p.b.BeginUnit("first");
                  const Tensor x = Embedding(p.b, p.table, std::nullopt);
                  LinearCrossEntropy(p.b, x, p.head, std::nullopt);
                  p.b.EndUnit(x);
                },
                Middle,
                [](Pieces& p) {
                  p.b.BeginUnit("last");
                  Norm(p.b, p.b.UnitInput(), {.weight = p.b.AddParameter(p.group, "norm", {C}, kNormal)}, "norm");
                  p.b.EndLastUnit();
                }),
            "unit last does not depend on its input");
  EXPECT_THAT(ErrorOf(First, Last, Middle), HasSubstr("unit middle begins after unit last was ended as the last one"));
}

TEST(Misuse, AUnitThatDoesNotUseItsInput) {
  EXPECT_EQ(ErrorOfMiddle([](Pieces& p) {
              p.b.BeginUnit("middle");
              p.b.EndUnit(Embedding(p.b, p.table, std::nullopt));
            }),
            "unit middle does not use its input: call UnitInput()");
  EXPECT_THAT(ErrorOf(
                  [](Pieces& p) {
                    p.b.BeginUnit("first");
                    p.b.EndUnit(p.b.UnitInput());
                  },
                  Middle, Last),
              HasSubstr("unit first is the first one, which has no input"));
}

TEST(Misuse, NamesAndIndicesThatRepeat) {
  EXPECT_EQ(ErrorOf(First, First, Last), "two units are named first");
  EXPECT_EQ(ErrorOfMiddle([](Pieces& p) {
              p.b.BeginUnit("middle", 1);
              p.b.EndUnit(Linear(p.b, p.b.UnitInput(), p.up, std::nullopt, "up"));
            }),
            "unit middle is block 1; the next block has the index 0, and a unit that is no block has -1");
}

}  // namespace
}  // namespace shale
