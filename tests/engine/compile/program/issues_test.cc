#include "engine/compile/program/issues.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/flat.h"
#include "tests/engine/compile/memory/program_builder.h"

namespace shale::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Returns "instruction.iteration" for each issue.
std::vector<std::string> TextOfIssues(const IssueRange& issues) {
  std::vector<std::string> text;
  for (const Issue& issue : issues) text.push_back(absl::StrCat(issue.id, ".", issue.iteration));
  return text;
}

// Instruction 0 runs once, 1 and 3 run four times, 2 runs in the last of these iterations only, and 4 runs once.
class IssuesTest : public ::testing::Test {
 protected:
  IssuesTest() {
    const BufferId a = b_.AddBuffer("a", 256), slots = b_.AddBuffer("slots", 256, 4);
    b_.Once();
    b_.Touch(StreamId::kCompute, {}, {b_.Bytes(a)});
    b_.Loop(4);
    b_.AccumulateAfterFirst(StreamId::kCompute, b_.Bytes(a), b_.Bytes(a));
    b_.Touch(StreamId::kReduce, {b_.Bytes(a)}, {}).last_iteration_only = true;
    b_.Touch(StreamId::kCompute, {}, {b_.Bytes(slots)});
    b_.Once();
    b_.Touch(StreamId::kCompute, {b_.Bytes(a)}, {});
    program_ = b_.Finish();
  }
  ProgramBuilder b_;
  StepProgram program_;
};

TEST_F(IssuesTest, VisitEveryIterationInIssueOrder) {
  EXPECT_THAT(TextOfIssues(IssuesOf(program_)),
              ElementsAre("0.0", "1.0", "3.0", "1.1", "3.1", "1.2", "3.2", "1.3", "2.3", "3.3", "4.0"));
  EXPECT_EQ(CountIssues(program_), 11);
}

TEST_F(IssuesTest, UnrolledTheLastIterationStandsForTheLoopsLast) {
  EXPECT_THAT(TextOfIssues(IssuesOf(program_, 2)), ElementsAre("0.0", "1.0", "3.0", "1.1", "2.1", "3.1", "4.0"));
  EXPECT_THAT(TextOfIssues(IssuesOf(program_, 1)), ElementsAre("0.0", "1.0", "2.0", "3.0", "4.0"));
}

TEST_F(IssuesTest, OfOneIteration) {
  EXPECT_THAT(TextOfIssues(IssuesOfIteration(program_, 1, 2)), ElementsAre("1.2", "3.2"));
  EXPECT_THAT(TextOfIssues(IssuesOfIteration(program_, 1, 3)), ElementsAre("1.3", "2.3", "3.3"));
  EXPECT_THAT(TextOfIssues(IssuesOfIteration(program_, 2, 0)), ElementsAre("4.0"));
}

TEST_F(IssuesTest, AnIterationMayIssueNothing) {
  program_.loops = {{0, 1, 1}, {1, 2, 1}, {2, 3, 3}, {3, 5, 1}};
  EXPECT_THAT(TextOfIssues(IssuesOfIteration(program_, 2, 0)), IsEmpty());
  EXPECT_THAT(TextOfIssues(IssuesOf(program_)), ElementsAre("0.0", "1.0", "2.2", "3.0", "4.0"));
}

TEST_F(IssuesTest, AProgramWithoutInstructionsHasNone) {
  EXPECT_THAT(TextOfIssues(IssuesOf(StepProgram{})), IsEmpty());
}

TEST_F(IssuesTest, TimesSumUpToTheCount) {
  int64_t count = 0;
  VisitWithTimes(program_, [&](const Instruction&, int64_t times) { count += times; });
  EXPECT_EQ(count, CountIssues(program_));
}

TEST_F(IssuesTest, FormsAreThatOfLaterIterationsAndIfItDiffersThatOfTheFirst) {
  const auto accumulates = [](const Instruction& instruction) {
    std::vector<bool> forms;
    VisitForms(instruction, [&](const Op& op) {
      const Accumulate* accumulate = op.As<Accumulate>();
      forms.push_back(accumulate != nullptr && accumulate->accumulate);
    });
    return forms;
  };
  EXPECT_THAT(accumulates(program_.instructions[1]), ElementsAre(true, false));
  EXPECT_THAT(accumulates(program_.instructions[0]), ElementsAre(false));
  Instruction first = program_.instructions[1];
  TakeForm(first, /*first_iteration=*/true);
  EXPECT_THAT(std::get<Op>(first.action).As<Accumulate>()->accumulate, false);
}

TEST_F(IssuesTest, SlotsMakeAddressesDependOnTheIteration) {
  EXPECT_FALSE(UsesSlots(program_, program_.instructions[1]));
  EXPECT_TRUE(UsesSlots(program_, program_.instructions[3]));
}

}  // namespace
}  // namespace shale::testing
