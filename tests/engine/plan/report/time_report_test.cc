#include <numeric>
#include <string>

#include "engine/api/plan_text.h"
#include "engine/plan/planner/step_facts.h"
#include "engine/plan/report/step_report.h"
#include "engine/plan/time/profile.h"
#include "engine/strings/printing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/plan.pb.h"
#include "tests/engine/plan/report/report_support.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

proto::MachineProfile NamedProfile(const std::string& name) {
  const absl::StatusOr<proto::MachineProfile> profile = ReadProfile(name);
  EXPECT_TRUE(profile.ok()) << profile.status();
  return *profile;
}

TEST(TimeReport, SecondsHaveThreeDigits) {
  EXPECT_EQ(FormatSeconds(1234.5), "1,235 s");
  EXPECT_EQ(FormatSeconds(1.934), "1.93 s");
  EXPECT_EQ(FormatSeconds(0.0123), "12.3 ms");
  EXPECT_EQ(FormatSeconds(4.5e-4), "450 us");
}

// What a step waits for adds up to the step, of every job, and the message says the same as the text.
TEST(TimeReport, PartsAddUpToTheStep) {
  const proto::MachineProfile machine = NamedProfile("h100x8");
  for (const Job& job : VariedJobs()) {
    SCOPED_TRACE(job.name);
    JobPlan plan = Plan(job);
    const Prediction p = PredictStep(job, plan, machine);
    EXPECT_GT(p.step_seconds, 0);
    EXPECT_LE(p.low_seconds, p.step_seconds);
    EXPECT_LE(p.step_seconds, p.high_seconds);
    EXPECT_NEAR(std::accumulate(p.limits.begin(), p.limits.end(), 0.0), p.step_seconds, 1e-9 * p.step_seconds);
    EXPECT_NEAR(std::accumulate(p.known.begin(), p.known.end(), 0.0), 1, 1e-9);
    for (const double busy : p.busy_seconds) EXPECT_LE(busy, p.step_seconds * (1 + 1e-6));
    EXPECT_THAT(TimeText(p), HasSubstr(FormatSeconds(p.step_seconds)));
    EXPECT_THAT(PathText(p), HasSubstr(p.path.front().name));
    proto::Plan message;
    const Admission admission = Admitted({job, std::move(plan)});
    ASSERT_TRUE(message.ParseFromString(PlanMessage(admission, PlanDetail::kSummary, {.step = &p})));
    EXPECT_EQ(message.seconds().step(), p.step_seconds);
    EXPECT_EQ(message.seconds().path_size(), static_cast<int>(p.path.size()));
  }
}

// One host has fast links, two share slower ones.
TEST(TimeReport, MoreHostsTakeLonger) {
  const proto::MachineProfile machine = NamedProfile("h100x8");
  const Job job = SmallDecoderJob(false);
  const JobPlan plan = Plan(job);
  ASSERT_GT(plan.options.mesh.ranks(), 1);
  EXPECT_GT(PredictStep(job, plan, machine, plan.options.mesh.ranks()).step_seconds,
            PredictStep(job, plan, machine, 1).step_seconds);
}

}  // namespace
}  // namespace shale
