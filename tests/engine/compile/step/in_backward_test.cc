// UpdateInBackward on programs built by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/program/program.h"
#include "engine/compile/step/passes.h"
#include "tests/engine/compile/step/pass_fixture.h"
#include "tests/engine/compile/step/program_listing.h"

namespace shale::testing {
namespace {

using ::testing::ElementsAre;

// Builds the plain program of a step with a group in each of two units, a and b, of which b has its backward first.
class InBackwardTest : public PassTest {
 protected:
  // Adds the backward of a unit.
  void Backward(int unit, const Group& group) { Visit(unit, {}, {Vector(group.gradient)}, Phase::kBackward); }
  void Reduce(int unit, const Group& group) {
    Instruction& reduce =
        builder_.Add(kReduce, Collective{.kind = CollectiveKind::kAllReduceSum, .full = Vector(group.gradient)});
    reduce.unit = unit;
    reduce.phase = Phase::kReduce;
  }
  // Adds the updates of both groups. The weights of b are gathered after its update.
  void Updates() {
    const BufferId loss = builder_.AddPersistent("loss", 8), rows = builder_.AddBuffer("rows", 48),
                   full = builder_.AddPersistent("full", 64);
    builder_.Once();
    builder_.Add(kReduce, Collective{.kind = CollectiveKind::kAllReduceSum, .full = Vector(loss, DType::kFloat64, 1)});
    Norm(a_, Row(rows, 0));
    Norm(b_, Row(rows, 1));
    UpdateGroup(0, a_, Row(rows, 0));
    UpdateGroup(1, b_, Row(rows, 1));
    builder_.Add(kGather, Collective{.local = Vector(b_.weight), .full = Vector(full, DType::kFloat32, 16)});
    builder_.Touch(kCompute, {Row(rows, 0)}, {});
  }
  // Returns what the program does, in order: the name of an op or collective with what it is for.
  static std::vector<std::string> Order(const StepProgram& program) {
    std::vector<std::string> order;
    const auto name = [&](const Tensor& t) { return absl::StrCat(" ", program.buffers[t.where.symbol].name); };
    for (const Loop& loop : program.loops) {
      if (loop.begin > 0) order.push_back("|");
      for (InstructionId id = loop.begin; id < loop.end; ++id) {
        const Instruction& instruction = program.instructions[id];
        const Op* op = std::get_if<Op>(&instruction.action);
        if (instruction.unit >= 0) {
          order.push_back(absl::StrCat(ToString(instruction.phase), " ", instruction.unit));
        } else if (op == nullptr) {
          const auto& collective = std::get<Collective>(instruction.action);
          order.push_back(NameOf(instruction) + name(collective.local.present() ? collective.local : collective.full));
        } else if (const auto* squares = op->As<SumSquares>()) {
          order.push_back("norm" + name(squares->x_N));
        } else if (const auto* prepare = op->As<PrepareUpdate>()) {
          order.push_back(prepare->counts ? "prepare, count" : "prepare");
        } else {
          const auto* update = op->As<Update>();
          order.push_back(update == nullptr ? "end" : "update" + name(update->weight_P));
        }
      }
    }
    return order;
  }

  const Group a_ = AddGroup("a", MemoryKind::kDevice), b_ = AddGroup("b", MemoryKind::kDevice);
};

TEST_F(InBackwardTest, OnOneRankAGroupIsUpdatedAfterItsBackward) {
  builder_.Loop(3);
  Backward(1, b_);
  Backward(0, a_);
  Updates();
  StepProgram program = builder_.Finish();
  program.micro_batches = 3;
  UpdateInBackward(program, Accumulation::kSharded, 1);
  EXPECT_TRUE(CheckStructure(program).ok()) << CheckStructure(program);
  EXPECT_THAT(Order(program),
              ElementsAre("backward 1", "AllReduceSum loss", "norm b.g", "prepare", "update b.w", "AllGather b.w",
                          "backward 0", "norm a.g", "prepare, count", "update a.w", "|", "end"));
  // What has moved brings its buffers. The rows keep the place that they had before they were used.
  EXPECT_THAT(Names(program),
              ElementsAre("a.w", "a.m", "a.g", "b.w", "b.m", "b.g", "loss", "rows", "full", "update", "update"));
  // What has moved into the loop runs once a step.
  for (InstructionId id = 0; id < program.loops[0].end; ++id) {
    EXPECT_EQ(program.instructions[id].last_iteration_only, program.instructions[id].unit < 0) << id;
  }
}

TEST_F(InBackwardTest, OnSeveralRanksAGroupWaitsForTheBackwardBesideItsReduction) {
  builder_.Loop(3);
  Backward(1, b_);
  Reduce(1, b_);
  Visit(0, {}, {}, Phase::kRecompute);  // A forward that runs again does not reduce.
  Visit(2, {}, {}, Phase::kBackward);
  Backward(0, a_);
  Reduce(0, a_);
  Updates();
  StepProgram program = builder_.Finish();
  program.micro_batches = 3;
  UpdateInBackward(program, Accumulation::kSharded, 2);
  EXPECT_TRUE(CheckStructure(program).ok()) << CheckStructure(program);
  EXPECT_THAT(Order(program), ElementsAre("backward 1", "reduce 1", "recompute 0", "backward 2", "AllReduceSum loss",
                                          "norm b.g", "prepare", "update b.w", "AllGather b.w", "backward 0",
                                          "reduce 0", "|", "norm a.g", "prepare, count", "update a.w", "end"));
}

TEST_F(InBackwardTest, OnSeveralRanksTotalsGoAheadOfReductions) {
  Backward(1, b_);
  Reduce(1, b_);
  Backward(0, a_);
  Reduce(0, a_);
  Updates();
  StepProgram program = builder_.Finish();
  UpdateInBackward(program, Accumulation::kSharded, 2);
  EXPECT_THAT(Order(program), ElementsAre("backward 1", "reduce 1", "backward 0", "AllReduceSum loss", "norm b.g",
                                          "reduce 0", "prepare", "update b.w", "AllGather b.w", "|", "norm a.g",
                                          "prepare, count", "update a.w", "end"));
  EXPECT_FALSE(program.instructions[3].last_iteration_only);  // The loop runs once.
}

TEST_F(InBackwardTest, LayeredUpdatesStandBetweenTheLoopsOfVisits) {
  builder_.Loop(3);
  Backward(1, b_);
  builder_.Once();
  Reduce(1, b_);
  builder_.Loop(3);
  Backward(0, a_);
  Updates();
  StepProgram program = builder_.Finish();
  program.micro_batches = 3;
  UpdateInBackward(program, Accumulation::kLayered, 1);
  EXPECT_TRUE(CheckStructure(program).ok()) << CheckStructure(program);
  EXPECT_THAT(Order(program), ElementsAre("backward 1", "|", "reduce 1", "AllReduceSum loss", "norm b.g", "prepare",
                                          "update b.w", "AllGather b.w", "|", "backward 0", "|", "norm a.g",
                                          "prepare, count", "update a.w", "|", "end"));
  for (const Instruction& instruction : program.instructions) EXPECT_FALSE(instruction.last_iteration_only);
}

}  // namespace
}  // namespace shale::testing
