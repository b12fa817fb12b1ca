#include <gtest/gtest.h>

#include "engine/compile/program/accesses.h"
#include "engine/compile/step/passes.h"
#include "kernels/ops/activation.h"
#include "kernels/ops/flat.h"
#include "tests/engine/compile/memory/program_builder.h"

namespace shale::testing {
namespace {

constexpr StreamId kCompute = StreamId::kCompute;
constexpr int64_t kTokens = 2, kWidth = 3;

// Usual() writes gate_up, differentiates it, and reads its gradient.
class WorkInPlaceTest : public ::testing::Test {
 protected:
  Tensor Wide(BufferId b) { return At(b, 2 * kWidth); }
  Tensor Narrow(BufferId b) { return At(b, kWidth); }
  Tensor At(BufferId b, int64_t width) {
    Tensor t = Tensor::Contiguous(DType::kFloat32, {kTokens, width});
    t.where = {.symbol = b};
    return t;
  }
  void Write(Tensor t) { builder_.Touch(kCompute, {}, {t}); }
  void Read(Tensor t) { builder_.Touch(kCompute, {t}, {}); }
  void Differentiate() { builder_.Add(kCompute, Op(SwiGluBackward{Wide(gate_up_), Narrow(d_y_), Wide(gradient_)})); }
  void Usual() {
    builder_.Loop(3);
    Write(Wide(gate_up_));
    Write(Narrow(d_y_));
    Differentiate();
    Read(Wide(gradient_));
  }
  // Calls WorkInPlace and returns the buffer in which the gradient lies afterwards.
  BufferId GradientIn(StepProgram program) {
    WorkInPlace(program);
    BufferId found = -1;
    for (const Instruction& instruction : program.instructions) {
      const Op& op = std::get<Op>(instruction.action);
      if (const auto* swiglu = op.As<SwiGluBackward>()) found = swiglu->d_gate_up_T2F.where.symbol;
    }
    return found;
  }
  BufferId GradientIn() { return GradientIn(builder_.Finish()); }

  ProgramBuilder builder_;
  const BufferId gate_up_ = builder_.AddBuffer("gate_up", kTokens * 2 * kWidth * 4);
  const BufferId d_y_ = builder_.AddBuffer("d_y", kTokens* kWidth * 4);
  const BufferId gradient_ = builder_.AddBuffer("gradient", kTokens * 2 * kWidth * 4);
};

TEST_F(WorkInPlaceTest, RenamesEveryUseOfWhatTakesOver) {
  Usual();
  StepProgram program = builder_.Finish();
  program.buffers[gate_up_].category = BufferCategory::kActivations;
  WorkInPlace(program);
  EXPECT_EQ(GradientIn(program), gate_up_);
  VisitInstruction(program.instructions.back(), false,
                   [&](absl::string_view, const Tensor& t, Access) { EXPECT_EQ(t.where.symbol, gate_up_); });
  EXPECT_EQ(program.buffers[gate_up_].name, "gate_up");
  EXPECT_EQ(program.buffers[gate_up_].category, BufferCategory::kActivations);
}

TEST_F(WorkInPlaceTest, NamesWorkspaceAfterWhatItBecomes) {
  Usual();
  StepProgram program = builder_.Finish();
  program.buffers[gradient_].category = BufferCategory::kActivationBoundaries;
  WorkInPlace(program);
  EXPECT_EQ(program.buffers[gate_up_].name, "gradient");
  EXPECT_EQ(program.buffers[gate_up_].category, BufferCategory::kActivationBoundaries);
}

TEST_F(WorkInPlaceTest, LeavesWhatIsReadLater) {
  Usual();
  Read(Wide(gate_up_));
  EXPECT_EQ(GradientIn(), gradient_);
}

TEST_F(WorkInPlaceTest, LeavesWhatWasInUseBefore) {
  builder_.Loop(3);
  Write(Wide(gradient_));
  Write(Wide(gate_up_));
  Write(Narrow(d_y_));
  Differentiate();
  Read(Wide(gradient_));
  EXPECT_EQ(GradientIn(), gradient_);
}

TEST_F(WorkInPlaceTest, LeavesWhatEveryIterationReads) {
  builder_.Once();
  Write(Wide(gate_up_));
  builder_.Loop(3);
  Write(Narrow(d_y_));
  Differentiate();
  Read(Wide(gradient_));
  EXPECT_EQ(GradientIn(), gradient_);
}

TEST_F(WorkInPlaceTest, LeavesWhatTheIterationBeforeWrote) {
  builder_.Loop(3);
  Write(Narrow(d_y_));
  Differentiate();
  Read(Wide(gradient_));
  EXPECT_EQ(GradientIn(), gradient_);
}

TEST_F(WorkInPlaceTest, LeavesWhatALaterLoopReads) {
  Usual();
  builder_.Once();
  Read(Wide(gradient_));
  EXPECT_EQ(GradientIn(), gradient_);
}

TEST_F(WorkInPlaceTest, LeavesPersistentSlottedAndHeldBuffers) {
  Usual();
  for (BufferId b : {gate_up_, gradient_}) {
    StepProgram program = builder_.Finish();
    program.buffers[b].persistent = true;
    EXPECT_EQ(GradientIn(program), gradient_);
    program = builder_.Finish();
    program.buffers[b].slots = 3;
    EXPECT_EQ(GradientIn(program), gradient_);
    program = builder_.Finish();
    program.buffers[b].held_until = 3;
    EXPECT_EQ(GradientIn(program), gradient_);
  }
}

TEST_F(WorkInPlaceTest, LeavesOpsThatCannot) {
  const BufferId x = builder_.AddBuffer("x", kTokens * kWidth * 4), y = builder_.AddBuffer("y", kTokens * kWidth * 4);
  builder_.Loop(3);
  Write(Narrow(x));
  builder_.Add(kCompute, Op(GeluForward{.x_TF = Narrow(x), .y_TF = Narrow(y)}));
  Read(Narrow(y));
  StepProgram program = builder_.Finish();
  WorkInPlace(program);
  EXPECT_EQ(std::get<Op>(program.instructions[1].action).As<GeluForward>()->y_TF.where.symbol, y);
}

// An output takes over the buffer of one input only.
TEST_F(WorkInPlaceTest, GivesABufferToOneOutput) {
  const BufferId a = builder_.AddBuffer("a", 24), b = builder_.AddBuffer("b", 24), out = builder_.AddBuffer("out", 24);
  const auto flat = [&](BufferId id) {
    Tensor t = Tensor::Contiguous(DType::kFloat32, {6});
    t.where = {.symbol = id};
    return t;
  };
  builder_.Loop(2);
  Write(flat(a));
  Write(flat(b));
  builder_.Add(kCompute, Op(Add{flat(a), flat(b), flat(out)}));
  Read(flat(out));
  StepProgram program = builder_.Finish();
  WorkInPlace(program);
  const Add& add = *std::get<Op>(program.instructions[2].action).As<Add>();
  EXPECT_EQ(add.out.where.symbol, a);
  EXPECT_EQ(add.b.where.symbol, b);
}

}  // namespace
}  // namespace shale::testing
