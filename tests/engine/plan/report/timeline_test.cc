#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "engine/plan/report/step_report.h"
#include "engine/strings/printing.h"
#include "gtest/gtest.h"
#include "tests/engine/plan/planner/planner_jobs.h"
#include "tests/engine/plan/report/report_support.h"

namespace shale {
namespace {

std::vector<std::string> NamesOf(const std::vector<Moment>& moments) {
  std::vector<std::string> names;
  for (const Moment& moment : moments) names.push_back(moment.name);
  return names;
}

int64_t Largest(const std::vector<Moment>& moments) {
  int64_t largest = 0;
  for (const Moment& moment : moments) largest = std::max(largest, moment.live.total);
  return largest;
}

// Returns the moment with this name, or one without bytes if there is none.
Moment Find(const std::vector<Moment>& moments, absl::string_view name) {
  for (const Moment& moment : moments) {
    if (moment.name == name) return moment;
  }
  return {};
}

TEST(Timeline, LargestMomentIsTheLowerBoundOfThePlan) {
  for (const Job& job : VariedJobs()) {
    const JobPlan plan = Plan(job);
    for (const PlannedProgram* program : {&plan.train, &plan.evaluate}) {
      const std::vector<Moment> moments = TimelineOf(program->step.program);
      EXPECT_EQ(Largest(moments), program->memory.lower_bound_bytes) << job.name;
      const auto at_peak = std::find_if(moments.begin(), moments.end(), [&](const Moment& moment) {
        return moment.instruction == program->memory.peak_instruction;
      });
      ASSERT_NE(at_peak, moments.end()) << job.name;
      EXPECT_EQ(at_peak->live.by_category, program->memory.bytes_at_peak) << job.name;
    }
  }
}

TEST(Timeline, HasThePartsOfATrainingStepInOrder) {
  EXPECT_EQ(NamesOf(TimelineOf(Plan(SmallDecoderJob(false)).train.step.program)),
            (std::vector<std::string>{"held after load", "peak of begin", "peak of forward", "peak of loss",
                                      "peak of backward", "peak of reduce", "peak of update", "peak of end",
                                      "held after the step"}));
  Job alone = SmallDecoderJob(true);
  alone.sharding.ranks = 1;
  const std::vector<Moment> moments = TimelineOf(Plan(alone).evaluate.step.program);
  EXPECT_EQ(NamesOf(moments), (std::vector<std::string>{"held after load", "peak of begin", "peak of forward",
                                                        "peak of loss", "peak of end", "held after the step"}));
}

TEST(Timeline, StepsHoldNothingBetweenThemButTheState) {
  for (const Job& job : VariedJobs()) {
    const std::vector<Moment> moments = TimelineOf(Plan(job).train.step.program);
    EXPECT_EQ(moments.front().live.total, moments.back().live.total);
    for (const Moment& moment : moments) EXPECT_GE(moment.live.total, moments.front().live.total) << moment.name;
  }
}

TEST(Timeline, LossIsWhereTheLogitsAre) {
  const std::vector<Moment> moments = TimelineOf(Plan(SmallDecoderJob(false)).train.step.program);
  const auto logits = static_cast<size_t>(BufferCategory::kLossWorkspace);
  EXPECT_GT(Find(moments, "peak of loss").live.by_category[logits], 0);
  EXPECT_EQ(Find(moments, "peak of forward").live.by_category[logits], 0);
  EXPECT_EQ(Find(moments, "peak of update").live.by_category[logits], 0);
}

TEST(Timeline, TableNamesEachPeakAndItsInstruction) {
  const JobPlan plan = Plan(SmallDecoderJob(false));
  const StepProgram& program = plan.train.step.program;
  const std::vector<Moment> moments = TimelineOf(program);
  const std::string text = TimelineText(program, moments);
  for (const Moment& moment : moments) {
    bool found = false;
    for (absl::string_view line : absl::StrSplit(text, '\n')) {
      if (!absl::StrContains(line, moment.name)) continue;
      found = true;
      EXPECT_TRUE(absl::StrContains(line, FormatBytes(moment.live.total))) << line;
      if (moment.instruction < 0) continue;
      const Instruction& instruction = program.instructions[moment.instruction];
      EXPECT_TRUE(absl::EndsWith(line, NameOf(instruction))) << line;
      EXPECT_TRUE(absl::StrContains(line, absl::StrCat(" ", moment.instruction, " "))) << line;
    }
    EXPECT_TRUE(found) << moment.name << " in\n" << text;
  }
  // A category without bytes at any of these moments has no column.
  EXPECT_TRUE(absl::StrContains(text, "optimizer"));
  EXPECT_FALSE(absl::StrContains(text, "snapshot"));
}

}  // namespace
}  // namespace shale
