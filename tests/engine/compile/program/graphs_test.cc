#include "engine/compile/program/graphs.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/compile/program/issues.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/compile/memory/program_builder.h"

namespace shale::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> TextOfSteps(const std::vector<GraphStep>& steps) {
  std::vector<std::string> text;
  for (const GraphStep& step : steps) {
    constexpr const char* kNames[] = {"fork", "wait", "issue", "signal", "join"};
    text.push_back(step.instruction < 0 ? absl::StrCat(kNames[static_cast<int>(step.kind)], " ", ToString(step.stream))
                                        : absl::StrCat(kNames[static_cast<int>(step.kind)], " ", step.instruction));
  }
  return text;
}

class GraphsTest : public ::testing::Test {
 protected:
  ProgramBuilder b_;
  BufferId a_ = b_.AddBuffer("a", 256);
  BufferId slots_ = b_.AddBuffer("slots", 256, 4);
};

// Instruction 1 waits for 0, which the loop before issued. 3 waits for 1 and 2. 2 and 3 also wait for instructions that
// come later.
TEST_F(GraphsTest, KeepTheWaitsOfTheirOwnIterationAlone) {
  b_.Once();
  b_.Touch(kCopy, {}, {b_.Bytes(a_)});
  b_.Loop(4);
  b_.Touch(kCompute, {b_.Bytes(a_)}, {}).waits = {0};
  b_.Touch(kCopy, {b_.Bytes(a_)}, {}).waits = {3};
  b_.Touch(kReduce, {b_.Bytes(a_)}, {}).waits = {1, 2, 4};
  b_.Touch(kCompute, {b_.Bytes(a_)}, {});
  const absl::StatusOr<std::vector<LoopGraphs>> graphs = CompileGraphs(b_.Finish());
  ASSERT_TRUE(graphs.ok()) << graphs.status();
  EXPECT_THAT(TextOfSteps((*graphs)[0].StepsOf(0)), ElementsAre("fork copy", "issue 0", "join copy"));
  EXPECT_THAT(TextOfSteps((*graphs)[1].StepsOf(2)),
              ElementsAre("issue 1", "signal 1", "fork copy", "issue 2", "signal 2", "fork reduce", "wait 1", "wait 2",
                          "issue 3", "issue 4", "join reduce", "join copy"));
  EXPECT_EQ((*graphs)[1].graphs(), 1);
}

TEST_F(GraphsTest, IterationsThatDifferHaveGraphsOfTheirOwn) {
  b_.Loop(5);
  b_.AccumulateAfterFirst(kCompute, b_.Bytes(a_), b_.Bytes(a_));
  b_.Touch(kCopy, {b_.Bytes(a_)}, {}).last_iteration_only = true;
  const StepProgram program = b_.Finish();
  const LoopGraphs graphs(program, 0);
  EXPECT_EQ(graphs.graphs(), 3);
  std::vector<int64_t> variants;
  for (int64_t i = 0; i < 5; ++i) variants.push_back(graphs.VariantOf(i));
  EXPECT_THAT(variants, ElementsAre(0, 1, 1, 1, 2));
  EXPECT_THAT(TextOfSteps(graphs.StepsOf(3)), ElementsAre("issue 0"));
  EXPECT_THAT(TextOfSteps(graphs.StepsOf(4)), ElementsAre("issue 0", "fork copy", "issue 1", "join copy"));
  EXPECT_EQ(DumpGraphs(program, {graphs}),
            "graphs\n"
            "\n"
            "loop of instructions 0 to 1: 3 graphs, launched 5 times\n"
            "iterations 0 to 3:\n"
            "  compute  run 0 (Accumulate)\n"
            "iteration 4:\n"
            "  compute  run 0 (Accumulate)\n"
            "  copy  fork\n"
            "  copy  run 1 (LayerNormForward)\n"
            "  copy  join\n");
}

TEST_F(GraphsTest, ALoopThatRunsOnceHasOne) {
  b_.Loop(1);
  b_.AccumulateAfterFirst(kCompute, b_.Bytes(a_), b_.Bytes(a_));
  b_.Touch(kCopy, {b_.Bytes(a_)}, {}).last_iteration_only = true;
  const LoopGraphs graphs(b_.Finish(), 0);
  EXPECT_EQ(graphs.graphs(), 1);
  EXPECT_FALSE(graphs.last_differs());
  EXPECT_EQ(graphs.VariantOf(0), 0);
  EXPECT_THAT(TextOfSteps(graphs.StepsOf(0)), ElementsAre("issue 0", "fork copy", "issue 1", "join copy"));
}

TEST_F(GraphsTest, OfTwoIterationsTheFirstAndTheLast) {
  b_.Loop(2);
  b_.AccumulateAfterFirst(kCompute, b_.Bytes(a_), b_.Bytes(a_));
  b_.Touch(kCopy, {b_.Bytes(a_)}, {}).last_iteration_only = true;
  const LoopGraphs graphs(b_.Finish(), 0);
  EXPECT_EQ(graphs.graphs(), 2);
  EXPECT_NE(graphs.VariantOf(0), graphs.VariantOf(1));
}

TEST_F(GraphsTest, EverySlotHasItsOwn) {
  b_.Loop(4);
  b_.Touch(kCompute, {}, {b_.Bytes(slots_)});
  const LoopGraphs graphs(b_.Finish(), 0);
  EXPECT_EQ(graphs.graphs(), 4);
  EXPECT_NE(graphs.VariantOf(1), graphs.VariantOf(2));
}

TEST_F(GraphsTest, RefuseCollectives) {
  b_.Once();
  b_.Add(kReduce, Collective{.kind = CollectiveKind::kAllReduceSum, .full = b_.Bytes(a_)});
  EXPECT_THAT(std::string(CompileGraphs(b_.Finish()).status().message()),
              HasSubstr("runtime.graphs wants one rank, found AllReduceSum between several"));
}

}  // namespace
}  // namespace shale::testing
