#include <gtest/gtest.h>

#include "engine/compile/memory/plan.h"
#include "tests/engine/compile/memory/interleaving.h"
#include "tests/engine/compile/memory/program_builder.h"
#include "tests/engine/compile/memory/random_program.h"
#include "tests/engine/compile/memory/unrolled.h"

namespace shale::testing {
namespace {

using Ids = std::vector<InstructionId>;

MemoryPlan PlanWithWaits(const StepProgram& program) {
  absl::StatusOr<MemoryPlan> plan = PlanMemory(program, {.alignment_bytes = 2});
  EXPECT_TRUE(plan.ok()) << plan.status();
  return *plan;
}

// Returns the waits that are derived for each instruction.
std::vector<Ids> Waits(StepProgram program) {
  const MemoryPlan plan = PlanWithWaits(program);
  DeriveWaits(program, plan);
  EXPECT_EQ(FindViolation(program, plan), "");
  std::vector<Ids> waits;
  for (const Instruction& instruction : program.instructions) waits.push_back(instruction.waits);
  return waits;
}

class DerivedWaits : public ::testing::Test {
 protected:
  Tensor X(int64_t begin = 0, int64_t count = -1) { return b_.Bytes(x_, begin, count); }
  ProgramBuilder b_;
  const BufferId p_ = b_.AddPersistent("p", 100);
  const BufferId x_ = b_.AddBuffer("x", 100);
};

TEST_F(DerivedWaits, AReadWaitsForTheWrite) {
  b_.Touch(kGather, {}, {X()});
  b_.Touch(kCompute, {X()}, {});
  EXPECT_EQ(Waits(b_.Finish()), (std::vector<Ids>{{}, {0}}));
}

TEST_F(DerivedWaits, AWriteWaitsForEveryReadSinceTheWrite) {
  b_.Touch(kGather, {}, {X()});
  b_.Touch(kCompute, {X()}, {});
  b_.Touch(kReduce, {X()}, {});
  b_.Touch(kCopy, {}, {X()});
  EXPECT_EQ(Waits(b_.Finish()), (std::vector<Ids>{{}, {0}, {0}, {1, 2}}));
}

TEST_F(DerivedWaits, NothingWaitsOnItsOwnStreamOrForReads) {
  b_.Touch(kCompute, {}, {X()});
  b_.Touch(kCompute, {X()}, {});
  b_.Touch(kGather, {b_.Bytes(p_)}, {});
  b_.Touch(kCompute, {b_.Bytes(p_)}, {X()});
  EXPECT_EQ(Waits(b_.Finish()), (std::vector<Ids>{{}, {}, {}, {}}));
}

// Only the first iteration writes the packed buffer, over bytes that another buffer used before. Later iterations read
// it.
TEST_F(DerivedWaits, TheFirstIterationWaitsForReadersOfWhatItOverwrites) {
  const BufferId packed = b_.AddBuffer("packed", 100);
  b_.Touch(kCompute, {}, {X()});  // 0
  b_.Touch(kReduce, {X()}, {});   // 1 waits for 0
  b_.Loop(3);
  b_.PackInFirst(kCompute, b_.Bytes(p_), b_.Bytes(packed), Tensor());  // 2, over x
  const StepProgram program = b_.Finish();
  const MemoryPlan plan = PlanWithWaits(program);
  ASSERT_EQ(plan.addresses[packed], plan.addresses[x_]);
  EXPECT_EQ(Waits(program), (std::vector<Ids>{{}, {0}, {1}}));
}

TEST_F(DerivedWaits, AreLeftOutWhereEarlierOnesImplyThem) {
  const BufferId y = b_.AddBuffer("y", 10);
  b_.Touch(kGather, {}, {X()});               // 0
  b_.Touch(kCompute, {X()}, {b_.Bytes(y)});   // 1 waits for 0
  b_.Touch(kCompute, {X()}, {});              // 2: FIFO after 1
  b_.Touch(kReduce, {X(), b_.Bytes(y)}, {});  // 3: 1 implies 0
  EXPECT_EQ(Waits(b_.Finish()), (std::vector<Ids>{{}, {0}, {}, {1}}));
}

TEST_F(DerivedWaits, LookAtBytesNotAtBuffers) {
  b_.Touch(kGather, {}, {X(0, 50)});
  b_.Touch(kCopy, {}, {X(50, 50)});
  b_.Touch(kCompute, {X(40, 10)}, {});
  b_.Touch(kCompute, {X(50, 2)}, {});
  EXPECT_EQ(Waits(b_.Finish()), (std::vector<Ids>{{}, {}, {0}, {1}}));
}

TEST_F(DerivedWaits, KeepBuffersThatShareBytesApart) {
  const BufferId y = b_.AddBuffer("y", 100);
  b_.Touch(kCompute, {}, {X()});
  b_.Touch(kReduce, {X()}, {});
  b_.Touch(kCompute, {}, {b_.Bytes(y)});  // x is dead: y takes its bytes.
  const StepProgram program = b_.Finish();
  EXPECT_EQ(PlanWithWaits(program).addresses[y], PlanWithWaits(program).addresses[x_]);
  EXPECT_EQ(Waits(program), (std::vector<Ids>{{}, {0}, {1}}));
}

TEST_F(DerivedWaits, ReachIntoTheIterationBefore) {
  b_.Loop(5);
  b_.Touch(kGather, {}, {X()});   // 0: before it overwrites x, 1 of the iteration before must have read x.
  b_.Touch(kCompute, {X()}, {});  // 1
  EXPECT_EQ(Waits(b_.Finish()), (std::vector<Ids>{{1}, {0}}));
}

TEST_F(DerivedWaits, OfALoopThatRunsOnceDoNotReachBack) {
  b_.Loop(1);
  b_.Touch(kGather, {}, {X()});
  b_.Touch(kCompute, {X()}, {});
  EXPECT_EQ(Waits(b_.Finish()), (std::vector<Ids>{{}, {0}}));
}

TEST_F(DerivedWaits, TakeNoOrderFromTheLastIterationInOthers) {
  // 1 would order 2 after 0, but it is issued in the last iteration only.
  b_.Loop(4);
  b_.Touch(kGather, {}, {X()});                             // 0
  b_.Touch(kReduce, {X()}, {}).last_iteration_only = true;  // 1
  b_.Touch(kCompute, {X()}, {});                            // 2
  const std::vector<Ids> waits = Waits(b_.Finish());
  EXPECT_EQ(waits, (std::vector<Ids>{{2}, {0}, {0}}));
}

TEST_F(DerivedWaits, CountPlacesByRankAndMicroBatchAsTheWholeBuffer) {
  const BufferId kept = b_.AddBuffer("kept", 10, /*slots=*/3);
  Tensor own = b_.Bytes(p_, 0, 50);
  own.where.shard_stride_bytes = 50;
  b_.Touch(kReduce, {}, {own});                    // 0
  b_.Touch(kCompute, {b_.Bytes(p_, 60, 10)}, {});  // 1
  b_.Loop(3);
  b_.Touch(kCompute, {}, {b_.Bytes(kept)});  // 2
  b_.Touch(kCopy, {b_.Bytes(kept)}, {});     // 3
  EXPECT_EQ(Waits(b_.Finish()), (std::vector<Ids>{{}, {0}, {3}, {2}}));
}

TEST_F(DerivedWaits, AreDerivedAnew) {
  b_.Touch(kGather, {}, {X()});
  b_.Touch(kCompute, {X()}, {}).waits = {0, 0, 7};
  StepProgram program = b_.Finish();
  DeriveWaits(program, PlanWithWaits(program));
  EXPECT_EQ(program.instructions[1].waits, Ids{0});
}

TEST(RandomWaits, OrderEveryPairThatMeetsInEveryIteration) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    StepProgram program = RandomProgram(seed);
    const MemoryPlan plan = PlanWithWaits(program);
    DeriveWaits(program, plan);
    ASSERT_EQ(FindViolation(program, plan), "") << "seed " << seed;
  }
}

TEST(RandomWaits, AreAllNeededWhereNothingRepeats) {
  int64_t waits = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    StepProgram program = RandomProgram(seed, {.instructions = 25, .largest_repeat = 1});
    const MemoryPlan plan = PlanWithWaits(program);
    DeriveWaits(program, plan);
    for (Instruction& instruction : program.instructions) {
      for (size_t i = 0; i < instruction.waits.size(); ++i, ++waits) {
        const std::vector<InstructionId> all = instruction.waits;
        instruction.waits.erase(instruction.waits.begin() + i);
        EXPECT_NE(FindViolation(program, plan), "") << "seed " << seed << ", the wait for " << all[i];
        instruction.waits = all;
      }
    }
  }
  EXPECT_GT(waits, 300);
}

TEST(RandomWaits, EveryInterleavingThatRespectsThemComputesTheSame) {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    StepProgram program = RandomProgram(seed, {.instructions = 40, .largest_buffer_bytes = 60});
    const MemoryPlan plan = PlanWithWaits(program);
    DeriveWaits(program, plan);
    for (uint64_t order = 0; order < 5; ++order) {
      ASSERT_EQ(RunInterleaved(program, plan, order), "") << "seed " << seed;
    }
  }
}

TEST(RandomWaits, WithoutThemSomeInterleavingDiffers) {
  // Shows that RunInterleaved detects missing waits.
  int different = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const StepProgram program = RandomProgram(seed);
    different += !RunInterleaved(program, PlanWithWaits(program), seed).empty();
  }
  EXPECT_GT(different, 40);
}

}  // namespace
}  // namespace shale::testing
