#include "engine/run/runtime/work_times.h"

#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops/flat.h"

namespace shale::testing {
namespace {

Tensor Numbers(int64_t elements) {
  Tensor t = Tensor::Contiguous(DType::kFloat32, {elements});
  t.where.symbol = 0;
  return t;
}

// Two copies and a collective.
StepProgram SmallProgram() {
  StepProgram program;
  program.buffers = {{.name = "a", .slot_bytes = 4000}};
  program.instructions = {
      {.action = Op(Copy{Numbers(10), Numbers(10)})},
      {.action = Op(Copy{Numbers(10), Numbers(10)})},
      {.action = Collective{.kind = CollectiveKind::kAllReduceSum, .full = Numbers(8)}, .stream = StreamId::kReduce}};
  program.loops = {{0, 3, 1}};
  return program;
}
constexpr Mesh kTwoRanks = {.replicate = 1, .shard = 2};

// Rank 1 comes 300 ns late to the collective, which then takes 100 ns.
const std::vector<InstructionTime> kEarly = {{.id = 0, .begin_ns = 0, .end_ns = 100},
                                             {.id = 1, .begin_ns = 110, .end_ns = 310},
                                             {.id = 2, .begin_ns = 400, .end_ns = 800}};
const std::vector<InstructionTime> kLate = {{.id = 0, .begin_ns = 0, .end_ns = 300},
                                            {.id = 1, .begin_ns = 330, .end_ns = 730},
                                            {.id = 2, .begin_ns = 700, .end_ns = 800}};

TEST(WorkTimes, WaitingForARankIsNotTheTimeOfACollective) {
  WorkTimes times;
  times.Add(SmallProgram(), kTwoRanks, {kEarly, kLate}, 1000e-9);
  ASSERT_EQ(times.works().size(), 2u);
  for (const auto& [text, samples] : times.works()) {
    if (samples.work.kind.find("AllReduceSum") == 0) {
      EXPECT_EQ(samples.issues, 1);
      ASSERT_EQ(samples.seconds.size(), 1u);
      EXPECT_NEAR(samples.seconds[0], 100e-9, 1e-15);
    } else {
      EXPECT_EQ(samples.issues, 2);
      EXPECT_NEAR(MeanOf(samples.seconds).mean, 250e-9, 1e-15);  // Of 100, 200, 300 and 400 ns.
      EXPECT_NEAR(MeanOf(samples.seconds).spread, 150e-9, 1e-15);
    }
  }
  EXPECT_NEAR(times.issue_seconds(), 20e-9, 1e-15);  // The middle of 10 and 30.
  EXPECT_NEAR(times.between_steps_seconds(), 200e-9, 1e-15);
  EXPECT_NEAR(times.rank_spread(), 150.0 / 700, 1e-9);  // One rank waits 300, and the other not at all.
}

// The rank for which others wait works longest: its collectives run alone for the least time.
TEST(WorkTimes, TheOwnTimeOfARankIsWithoutCollectivesThatRunAlone) {
  const RankTimes early = TimesOfRank(SmallProgram(), kTwoRanks, 0, kEarly, 1000e-9);
  const RankTimes late = TimesOfRank(SmallProgram(), kTwoRanks, 1, kLate, 1000e-9);
  EXPECT_EQ(late.rank, 1);
  EXPECT_NEAR(early.own_seconds, 600e-9, 1e-15);  // 400 alone.
  EXPECT_NEAR(late.own_seconds, 930e-9, 1e-15);   // 70 alone.
  EXPECT_NEAR(early.seconds.at(kBetweenInstructions), 100e-9, 1e-15);
  EXPECT_NEAR(late.seconds.at(kBetweenInstructions), 30e-9, 1e-15);
  EXPECT_NEAR(late.seconds.at(kBetweenSteps), 200e-9, 1e-15);
  EXPECT_NEAR(late.seconds.at(KindText(WorkOf(SmallProgram().instructions[0], kTwoRanks), StreamId::kCompute)), 700e-9,
              1e-15);
  EXPECT_EQ(late.seconds.size(), 4u);
}

}  // namespace
}  // namespace shale::testing
