#include "engine/plan/time/clock.h"

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/compile/memory/program_builder.h"

namespace shale::testing {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;

// Builds a program whose instructions take given seconds.
class ClockTest : public ::testing::Test {
 protected:
  InstructionId Run(StreamId stream, double seconds, std::vector<InstructionId> waits = {}) {
    b_.Touch(stream, {}, {}).waits = std::move(waits);
    times_.push_back({{.seconds = seconds}, {.seconds = seconds}});
    return b_.next() - 1;
  }
  // Lets an instruction take a share of a resource.
  void Use(InstructionId id, Resource resource, double share) {
    for (TimeAlone* alone : {&times_[id].first, &times_[id].later}) alone->uses[static_cast<size_t>(resource)] = share;
  }
  StepTimes Result(const ClockOptions& options = {}) {
    program_ = b_.Finish();
    return RunOnPaper(program_, times_, options);
  }
  // Returns the instructions of the critical path.
  static std::vector<InstructionId> Path(const StepTimes& step) {
    std::vector<InstructionId> path;
    for (const int32_t i : step.path) path.push_back(step.issues[i].issue.id);
    return path;
  }
  static double Busy(const StepTimes& step, StreamId stream) { return step.busy_seconds[static_cast<size_t>(stream)]; }

  ProgramBuilder b_;
  std::vector<InstructionTimes> times_;
  StepProgram program_;
};

TEST_F(ClockTest, StreamsOverlapUntilOneWaitsForAnother) {
  const InstructionId gather = Run(kGather, 3), first = Run(kCompute, 1);
  const InstructionId next_gather = Run(kGather, 1), second = Run(kCompute, 2, {gather});
  const InstructionId third = Run(kCompute, 4, {next_gather});
  const StepTimes step = Result();
  EXPECT_DOUBLE_EQ(step.seconds, 9);  // Gather 3, then compute 2 and 4.
  EXPECT_DOUBLE_EQ(step.issues[first].end, 1);
  EXPECT_DOUBLE_EQ(step.issues[second].begin, 3);
  EXPECT_DOUBLE_EQ(step.issues[next_gather].end, 4);
  EXPECT_DOUBLE_EQ(step.issues[third].begin, 5);
  EXPECT_THAT(Path(step), ElementsAre(gather, second, third));
  EXPECT_DOUBLE_EQ(Busy(step, kCompute), 7);
  EXPECT_DOUBLE_EQ(Busy(step, kGather), 4);
  EXPECT_DOUBLE_EQ(step.issue_seconds, 0);
}

TEST_F(ClockTest, InstructionsThatShareAResourceSlowEachOtherDown) {
  const InstructionId matmul = Run(kCompute, 4), gather = Run(kGather, 1);
  Use(matmul, Resource::kMemory, 0.5);
  Use(gather, Resource::kMemory, 1);
  const StepTimes step = Result();
  // Together they ask for 1.5 of the memory, so the gather takes 1.5 s, and the matmul does 1 s of work meanwhile.
  EXPECT_DOUBLE_EQ(step.issues[gather].end, 1.5);
  EXPECT_DOUBLE_EQ(step.seconds, 1.5 + 3);
}

TEST_F(ClockTest, InstructionsThatUseDifferentResourcesDoNot) {
  const InstructionId matmul = Run(kCompute, 4), gather = Run(kGather, 1), copy = Run(kCopy, 2);
  Use(matmul, Resource::kProcessors, 1);
  Use(gather, Resource::kHostLinks, 1);
  Use(copy, Resource::kMemory, 1);
  const StepTimes step = Result();
  EXPECT_DOUBLE_EQ(step.issues[gather].end, 1);
  EXPECT_DOUBLE_EQ(step.issues[copy].end, 2);
  EXPECT_DOUBLE_EQ(step.seconds, 4);
}

// The gather of an iteration overwrites what the compute of the iteration before reads.
TEST_F(ClockTest, WaitsReachIntoTheIterationBefore) {
  b_.Loop(4);
  const InstructionId gather = b_.next(), compute = gather + 1;
  Run(kGather, 1, {compute});
  Run(kCompute, 2, {gather});
  EXPECT_DOUBLE_EQ(Result().seconds, 4 * 3);
}

TEST_F(ClockTest, WithoutThatWaitTheGatherRunsAhead) {
  b_.Loop(4);
  const InstructionId gather = Run(kGather, 1);
  Run(kCompute, 2, {gather});
  EXPECT_DOUBLE_EQ(Result().seconds, 1 + 4 * 2);
}

TEST_F(ClockTest, TheFirstAndTheLastIterationMayDiffer) {
  b_.Loop(3);
  Run(kCompute, 2);
  times_.back().first.seconds = 5;
  const InstructionId compute = Run(kCompute, 1);
  b_.program().instructions[Run(kReduce, 7, {compute})].last_iteration_only = true;
  const StepTimes step = Result();
  EXPECT_DOUBLE_EQ(step.seconds, 6 + 3 + 3 + 7);
  EXPECT_DOUBLE_EQ(Busy(step, kReduce), 7);
}

// Adds a loop of two streams that wait for each other across iterations and share memory, between single instructions.
void AddLoop(ProgramBuilder& b, std::vector<InstructionTimes>& times, int64_t repeat) {
  const auto run = [&](StreamId stream, double first, double later, double memory, std::vector<InstructionId> waits) {
    b.Touch(stream, {}, {}).waits = std::move(waits);
    times.push_back({{.seconds = first, .uses = {0, memory}}, {.seconds = later, .uses = {0, memory}}});
  };
  b.Once();
  run(kCopy, 0.3, 0.3, 0.1, {});
  b.Loop(repeat);
  const InstructionId begin = b.next();
  run(kGather, 0.7, 0.7, 0.8, {begin + 3});
  run(kCompute, 1.1, 1.0, 0.6, {begin});
  run(kReduce, 0.9, 0.5, 0.5, {begin + 1});
  run(kCompute, 0.4, 0.4, 0.6, {begin + 2});
  run(kReduce, 2.0, 2.0, 0.2, {begin + 3});
  b.program().instructions.back().last_iteration_only = true;
  b.Once();
  run(kCompute, 1.3, 1.3, 0, {begin + 4});
}

TEST(Clock, ALoopTakesAsLongAsItsIterationsOneByOne) {
  constexpr int64_t kRepeat = 1000;
  ProgramBuilder loop;
  std::vector<InstructionTimes> times;
  AddLoop(loop, times, kRepeat);
  const StepProgram program = loop.Finish();
  const StepTimes step = RunOnPaper(program, times);
  EXPECT_LT(step.issues.size(), 60u);

  // The same with a loop of one iteration for each. Waits for an instruction become waits for its copy of this
  // iteration or, if that comes later, of the one before.
  StepProgram unrolled;
  unrolled.units = program.units;
  std::vector<InstructionTimes> unrolled_times;
  std::vector<InstructionId> latest(program.instructions.size(), -1);
  for (const Issue& issue : IssuesOf(program)) {
    Instruction copy = program.instructions[issue.id];
    copy.last_iteration_only = false;
    copy.waits.clear();
    for (const InstructionId wait : program.instructions[issue.id].waits) {
      if (latest[wait] >= 0) copy.waits.push_back(latest[wait]);
    }
    latest[issue.id] = static_cast<InstructionId>(unrolled.instructions.size());
    unrolled.instructions.push_back(copy);
    const TimeAlone& time = issue.first_iteration() ? times[issue.id].first : times[issue.id].later;
    unrolled_times.push_back({time, time});
  }
  unrolled.loops = {{0, static_cast<InstructionId>(unrolled.instructions.size()), 1}};
  const StepTimes whole = RunOnPaper(unrolled, unrolled_times);
  EXPECT_NEAR(step.seconds, whole.seconds, 1e-6 * whole.seconds);
  for (int s = 0; s < kStreams; ++s) EXPECT_NEAR(step.busy_seconds[s], whole.busy_seconds[s], 1e-6 * whole.seconds);
  const auto on_path = [](const StepTimes& of) {
    return std::accumulate(of.path.begin(), of.path.end(), 0.0, [&](double sum, int32_t i) {
      return sum + of.issues[i].times * (of.issues[i].end - of.issues[i].begin);
    });
  };
  EXPECT_NEAR(on_path(whole), whole.seconds, 1e-9 * whole.seconds);
  EXPECT_NEAR(on_path(step), step.seconds, 1e-6 * whole.seconds);
}

TEST_F(ClockTest, ShortInstructionsWaitForTheirIssue) {
  for (int i = 0; i < 10; ++i) Run(kCompute, 0.1);
  const StepTimes step = Result({.issue_seconds = 1});
  EXPECT_DOUBLE_EQ(step.seconds, 9.1);
  EXPECT_THAT(step.issue_seconds, DoubleNear(9, 1e-12));
  EXPECT_THAT(Path(step), ElementsAre(9));
}

// A graph begins when the one before it has ended, on all streams.
TEST_F(ClockTest, GraphsRunOneAfterAnother) {
  b_.Loop(3);
  Run(kGather, 2);
  Run(kCompute, 3);
  Run(kCompute, 1);
  Run(kReduce, 5);
  EXPECT_DOUBLE_EQ(Result().seconds, 15);
  EXPECT_DOUBLE_EQ(Result({.issue_seconds = 1, .graphs = true}).seconds, 15);
}

TEST_F(ClockTest, CollectivesWaitForTheLastRank) {
  const InstructionId compute = Run(kCompute, 10);
  const InstructionId reduce = Run(kReduce, 1, {compute});
  // That the ranks have met on another stream brings this one no nearer.
  const InstructionId gather = Run(kGather, 2);
  for (const InstructionId id : {reduce, gather}) times_[id].first.waits_for_ranks = true;
  EXPECT_DOUBLE_EQ(Result({.rank_spread = 0.1}).seconds, 10 + 1 + 1);
}

TEST(Clock, AnEmptyProgramTakesNoTime) { EXPECT_EQ(RunOnPaper(StepProgram{}, {}).seconds, 0); }

}  // namespace
}  // namespace shale::testing
