#include <gtest/gtest.h>

#include <memory>

#include "engine/compile/memory/plan.h"
#include "kernels/ops/flat.h"
#include "tests/engine/compile/memory/program_builder.h"
#include "tests/engine/compile/memory/random_program.h"
#include "tests/engine/compile/memory/unrolled.h"

namespace shale::testing {
namespace {

class Check : public ::testing::Test {
 protected:
  // Plans the program, derives its waits and applies `edit`. Returns the message of CheckProgram.
  template <class Edit>
  std::string Message(Edit edit) {
    StepProgram program = b_.Finish();
    MemoryPlan plan = *PlanMemory(program, {});
    DeriveWaits(program, plan);
    edit(program, plan);
    const absl::Status status = CheckProgram(program, plan);
    EXPECT_EQ(FindViolation(program, plan).empty(), status.ok()) << status;
    return std::string(status.message());
  }
  std::string Message() {
    return Message([](StepProgram&, MemoryPlan&) {});
  }
  Tensor X(int64_t begin = 0, int64_t count = -1) { return b_.Bytes(x_, begin, count); }

  ProgramBuilder b_;
  const BufferId p_ = b_.AddPersistent("p", 512);
  const BufferId x_ = b_.AddBuffer("x", 100);
  const BufferId y_ = b_.AddBuffer("y", 100);
};

TEST_F(Check, FindsAReadBeforeItsWriteHasFinished) {
  b_.program().units = {"embedding", "blocks.0"};
  Instruction& gather = b_.Add(kGather, Collective{.local = b_.Bytes(p_, 0, 100), .full = X()});
  gather.unit = 1;
  Instruction& use = b_.Touch(kCompute, {X(20, 30)}, {});
  use.unit = 1;
  use.phase = Phase::kBackward;
  EXPECT_EQ(Message(), "");
  EXPECT_EQ(
      Message([](StepProgram& p, MemoryPlan&) { p.instructions[1].waits.clear(); }),
      "instruction 1 (LayerNormForward, compute stream, unit blocks.0, backward) reads bytes [20, 50) of buffer x, "
      "while instruction 0 (AllGather, gather stream, unit blocks.0, forward) may still write bytes [20, 50) of "
      "buffer x: bytes [532, 562) of the arena, and no wait orders the two");
}

TEST_F(Check, FindsBytesThatAreReusedTooEarly) {
  b_.Touch(kCompute, {}, {X()});
  b_.Touch(kReduce, {X()}, {});
  b_.Touch(kCompute, {}, {b_.Bytes(y_)});
  EXPECT_EQ(Message([](StepProgram& p, MemoryPlan&) { p.instructions[2].waits.clear(); }),
            "instruction 2 (LayerNormForward, compute stream, forward) writes bytes [0, 100) of buffer y, while "
            "instruction 1 (LayerNormForward, reduce stream, forward) may still read bytes [0, 100) of buffer x: bytes "
            "[512, 612) of the arena, and no wait orders the two");
}

TEST_F(Check, FindsARaceWithTheIterationBefore) {
  b_.Loop(2);
  b_.Touch(kGather, {}, {X()});
  b_.Touch(kCompute, {X()}, {});
  EXPECT_EQ(
      Message([](StepProgram& p, MemoryPlan&) { p.instructions[0].waits.clear(); }),
      "instruction 0 (LayerNormForward, gather stream, forward) in iteration 1 writes bytes [0, 100) of buffer x, "
      "while "
      "instruction 1 (LayerNormForward, compute stream, forward) may still read bytes [0, 100) of buffer x: bytes "
      "[512, 612) of the arena, and no wait orders the two");
}

TEST_F(Check, TakesNoOrderFromAnIterationInWhichAnInstructionIsNotIssued) {
  b_.Loop(4);
  b_.Touch(kGather, {}, {X()});                             // 0
  b_.Touch(kReduce, {X()}, {}).last_iteration_only = true;  // 1, waits for 0
  b_.Touch(kCompute, {X()}, {});                            // 2, waits for 0
  EXPECT_EQ(Message(), "");
  const std::string message = Message([](StepProgram& p, MemoryPlan&) { p.instructions[2].waits = {1}; });
  EXPECT_NE(message.find("instruction 2 (LayerNormForward, compute stream, forward) reads"), std::string::npos)
      << message;
}

TEST_F(Check, FindsAReadOfWhatNothingWrote) {
  b_.Touch(kCompute, {}, {X(0, 40)});
  b_.Touch(kCompute, {X(0, 42)}, {});
  EXPECT_EQ(Message(),
            "instruction 1 (LayerNormForward, compute stream, forward) reads bytes [40, 41) of buffer x (bytes "
            "[552, 553) of the arena), which nothing has written before");
}

TEST_F(Check, FindsAReadOfWhatTheFirstIterationHasNotWritten) {
  b_.Loop(2);
  b_.Touch(kCompute, {X()}, {});
  b_.Touch(kCompute, {}, {X()});
  EXPECT_NE(Message(), "");
}

TEST_F(Check, AcceptsAccumulationThatOverwritesFirst) {
  b_.Loop(2);
  b_.AccumulateAfterFirst(kCompute, b_.Bytes(p_), X());
  b_.Once();
  b_.Touch(kCompute, {X()}, {});
  EXPECT_EQ(Message(), "");
}

TEST_F(Check, FindsGapsThatWereNotZeroed) {
  b_.Touch(kCompute, {}, {X(0, 60)});
  b_.Add(
      kCompute,
      Op(ZeroRanges{.x_N = X(),
                    .ranges = std::make_shared<const std::vector<ElementRange>>(std::vector<ElementRange>{{30, 49}})}));
  b_.Touch(kCompute, {X(0, 98)}, {});
  EXPECT_EQ(Message(), "");
  b_.Touch(kCompute, {X()}, {});
  EXPECT_NE(Message(), "");
}

TEST_F(Check, FindsABufferPlacedOverALiveOne) {
  b_.Touch(kCompute, {}, {X()});
  b_.Touch(kCompute, {}, {b_.Bytes(y_)});
  b_.Touch(kCompute, {X(), b_.Bytes(y_)}, {});
  EXPECT_EQ(
      Message([&](StepProgram&, MemoryPlan& plan) { plan.addresses[y_] = plan.addresses[x_] + 10; }),
      "instruction 2 (LayerNormForward, compute stream, forward) reads bytes [10, 11) of buffer x (bytes [522, "
      "523) of the arena), which instruction 1 (LayerNormForward, compute stream, forward) has overwritten with bytes "
      "[0, 1) of buffer y");
}

TEST_F(Check, FindsABufferPlacedOverAPersistentOne) {
  b_.Touch(kCompute, {}, {X()});
  b_.Touch(kCompute, {b_.Bytes(p_)}, {});
  EXPECT_NE(Message([&](StepProgram&, MemoryPlan& plan) { plan.addresses[x_] = 500; }), "");
}

TEST_F(Check, FindsAnOutputOverAnInputOfTheSameInstruction) {
  b_.Touch(kCompute, {}, {X()});
  b_.Touch(kCompute, {X()}, {b_.Bytes(y_)});
  EXPECT_EQ(
      Message([&](StepProgram&, MemoryPlan& plan) { plan.addresses[y_] = plan.addresses[x_] + 90; }),
      "instruction 1 (LayerNormForward, compute stream, forward) writes bytes [0, 10) of buffer y, which are bytes "
      "[90, 100) of buffer x, its other operand: bytes [602, 612) of the arena");
}

TEST_F(Check, RefusesWaitsThatNeverEnd) {
  b_.Touch(kGather, {}, {X()});
  b_.Touch(kCompute, {X()}, {});
  b_.Touch(kCompute, {X()}, {});
  EXPECT_EQ(
      Message([](StepProgram& p, MemoryPlan&) { p.instructions[0].waits = {1}; }),
      "instruction 0 (LayerNormForward, gather stream, forward) waits for instruction 1 (LayerNormForward, compute "
      "stream, forward), which is never issued before it: a cycle");
  EXPECT_EQ(
      Message([](StepProgram& p, MemoryPlan&) { p.instructions[2].waits = {1}; }),
      "instruction 2 (LayerNormForward, compute stream, forward) waits for instruction 1 (LayerNormForward, compute "
      "stream, forward), which is on its own stream");
  StepProgram program = b_.Finish();
  const MemoryPlan plan = *PlanMemory(program, {});
  program.instructions[2].waits = {3};
  EXPECT_EQ(CheckProgram(program, plan).message(),
            "instruction 2 (LayerNormForward, compute stream, forward) waits for instruction 3; there are 3");
}

TEST_F(Check, RefusesBuffersOutsideThePlan) {
  b_.Touch(kCompute, {}, {X()});
  const StepProgram program = b_.Finish();
  const MemoryPlan plan = *PlanMemory(program, {});
  for (int64_t address : {int64_t{-2}, int64_t{514}, std::numeric_limits<int64_t>::max()}) {
    MemoryPlan moved = plan;
    moved.addresses[x_] = address;
    EXPECT_FALSE(CheckProgram(program, moved).ok()) << address;
  }
  MemoryPlan few = plan;
  few.addresses.pop_back();
  EXPECT_EQ(CheckProgram(program, few).message(), "the plan has 2 addresses for 3 buffers");
}

TEST_F(Check, ProvesWhatWaitsInHostMemory) {
  const BufferId host = b_.AddHostBuffer("h", 100);
  b_.Touch(kCompute, {}, {X()});
  b_.Add(StreamId::kCopy, Transfer{X(), b_.Bytes(host), /*to_host=*/true});
  b_.Add(kGather, Transfer{b_.Bytes(y_), b_.Bytes(host)});
  b_.Touch(kCompute, {X(), b_.Bytes(y_)}, {});
  EXPECT_EQ(Message(), "");
  EXPECT_NE(Message([](StepProgram& p, MemoryPlan&) { p.instructions[1].waits.clear(); }), "");
  EXPECT_EQ(
      Message([](StepProgram& p, MemoryPlan&) { p.instructions[2].waits.clear(); }),
      "instruction 2 (Fetch, gather stream, forward) reads bytes [0, 100) of buffer h, while instruction 1 "
      "(Offload, copy stream, forward) may still write bytes [0, 100) of buffer h: bytes [0, 100) of host memory, "
      "and no wait orders the two");
  const StepProgram program = b_.Finish();
  MemoryPlan plan = *PlanMemory(program, {});
  plan.addresses[host] += 2;
  EXPECT_EQ(CheckProgram(program, plan).message(),
            "buffer h of 100 bytes lies at 2, outside the 100 bytes of host memory in the plan");
  plan.addresses[host] = 0;
  EXPECT_FALSE(CheckProgram(program, plan).ok());
}

TEST_F(Check, RefusesOperandsInTheWrongMemory) {
  const BufferId host = b_.AddHostBuffer("h", 100);
  b_.Touch(kCompute, {}, {X()});
  b_.Add(StreamId::kCopy, Transfer{X(), b_.Bytes(host), /*to_host=*/true});
  StepProgram program = b_.Finish();
  const MemoryPlan plan = *PlanMemory(program, {});
  const auto refused = [&](auto&& change) {
    StepProgram changed = program;
    change(changed);
    EXPECT_EQ(PlanMemory(changed, {}).status().code(), absl::StatusCode::kInternal);
    return std::string(CheckProgram(changed, plan).message());
  };
  const auto transfer = [](StepProgram& p) -> Transfer& { return std::get<Transfer>(p.instructions[1].action); };
  EXPECT_EQ(refused([&](StepProgram& p) { p.buffers[x_].memory = MemoryKind::kHost; }),
            "instruction 0 (LayerNormForward, compute stream, forward): operand sum i16[50] lies in buffer x in host "
            "memory; wanted the arena");
  EXPECT_EQ(refused([&](StepProgram& p) { p.buffers[host].memory = MemoryKind::kDevice; }),
            "instruction 1 (Offload, copy stream, forward): operand host i16[50] lies in buffer h in the arena; wanted "
            "host memory");
  EXPECT_EQ(
      refused([&](StepProgram& p) { p.instructions[0].stream = StreamId::kHost; }),
      "instruction 0 (LayerNormForward, host stream, forward): operand sum i16[50] lies in buffer x in the arena; "
      "wanted host memory");
  EXPECT_EQ(refused([&](StepProgram& p) { transfer(p).host.shape[0] = 40; }),
            "instruction 1 (Offload, copy stream, forward): moves i16[50] on the device and i16[40] on the host; "
            "wanted contiguous tensors of one size");
  EXPECT_NE(refused([&](StepProgram& p) { transfer(p).host = Tensor(); }), "");
}

TEST(CheckRandom, AcceptsEveryDerivedProgram) {
  for (uint64_t seed = 1000; seed < 1150; ++seed) {
    StepProgram program = RandomProgram(seed, {.instructions = 80, .largest_repeat = 9});
    const MemoryPlan plan = *PlanMemory(program, {});
    DeriveWaits(program, plan);
    ASSERT_TRUE(CheckProgram(program, plan).ok()) << seed << ": " << CheckProgram(program, plan);
  }
}

TEST(CheckRandom, AcceptsAStepOfManyLayers) {
  StepProgram program = LayeredProgram(30, 1);
  const MemoryPlan plan = *PlanMemory(program, {});
  DeriveWaits(program, plan);
  EXPECT_TRUE(CheckProgram(program, plan).ok()) << CheckProgram(program, plan);
}

}  // namespace
}  // namespace shale::testing
