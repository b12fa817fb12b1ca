#include "engine/run/train/reports.h"

#include <cmath>
#include <limits>

#include "engine/compile/model/model.h"
#include "engine/plan/planner/job_plan.h"
#include "engine/plan/planner/summary.h"
#include "engine/plan/time/prediction.h"
#include "engine/run/train/step_flops.h"
#include "gtest/gtest.h"
#include "kernels/step_scalars.h"
#include "tests/engine/plan/planner/planner_jobs.h"

namespace shale {
namespace {

StepOutputs Outputs(double loss, double squared_norm, int64_t tokens) {
  StepOutputs outputs;
  outputs.totals[kTotalLoss] = loss;
  outputs.totals[kTotalSquaredNorm] = squared_norm;
  outputs.global_tokens = tokens;
  return outputs;
}

TEST(Reports, AStepIsReportedPerTokenAndPerSecond) {
  const StepReport report = MakeStepReport(Outputs(30, 9, 10), {.step = 7,
                                                                .tokens = 70,
                                                                .processed_tokens = 30,
                                                                .learning_rate = 0.5,
                                                                .seconds = 2,
                                                                .peak_bytes_planned = 11,
                                                                .peak_bytes_measured = 12});
  EXPECT_EQ(report.step, 7);
  EXPECT_EQ(report.tokens, 70);
  EXPECT_EQ(report.step_tokens, 10);
  EXPECT_EQ(report.loss, 3);
  EXPECT_EQ(report.gradient_norm, 3);
  EXPECT_EQ(report.learning_rate, 0.5);
  EXPECT_TRUE(report.updated);
  EXPECT_EQ(report.processed_tokens, 30);
  EXPECT_EQ(report.tokens_per_second, 15);  // All tokens, which the step computes, and not only those that count.
  EXPECT_EQ(report.peak_bytes_planned, 11);
  EXPECT_EQ(report.peak_bytes_measured, 12);
}

// Regression: a peak that was measured on a busy machine made 394 % of MFU.
TEST(Reports, AnMfuAboveOneIsNotKnown) {
  EXPECT_EQ(MfuOf(3000, 2, 500, 4), 0.75);
  EXPECT_EQ(MfuOf(100, 1, 100, 1), 1);
  EXPECT_EQ(MfuOf(100, 1, 99, 1), 0);
  EXPECT_EQ(MfuOf(100, 1, 0, 1), 0);
}

// A job that multiplies fp8 matrices twice as fast as others takes half of their time at the peak.
TEST(Reports, MfuRefersToThePeakOfWhatTheJobMultiplies) {
  const Job job = SmallFloat8Job();
  const absl::StatusOr<ModelGraph> graph = BuildModel(job.model, GraphOptionsFor(job, GraphMode::kTraining));
  ASSERT_TRUE(graph.ok()) << graph.status();
  const double all = ModelFlopsPerToken(job, *graph), float8 = Float8FlopsPerToken(*graph);
  ASSERT_TRUE(float8 > 0 && float8 < all);
  EXPECT_DOUBLE_EQ(StepFlops(job, *graph, Float8Speed(1e12, 2e12)).OfTokens(10), 10 * (all - float8 / 2));
  EXPECT_DOUBLE_EQ(StepFlops(job, *graph, Float8Speed(1e12, 0)).OfTokens(10), 10 * all);
}

TEST(Reports, AStepWithoutTokensUpdatesNothing) {
  const StepReport report = MakeStepReport(Outputs(0, 0, 0), {.seconds = 1});
  EXPECT_FALSE(report.updated);
  EXPECT_EQ(report.loss, 0);
  EXPECT_EQ(report.mfu, 0);
}

TEST(Reports, AStepThatIsNotFiniteHasNoNumbers) {
  StepOutputs outputs = Outputs(1, std::numeric_limits<double>::infinity(), 10);
  EXPECT_TRUE(IsFinite(outputs));
  outputs.totals[kTotalNonFinite] = 2;
  EXPECT_FALSE(IsFinite(outputs));
  const StepReport report = MakeStepReport(outputs, {.seconds = 1});
  EXPECT_FALSE(report.updated);
  EXPECT_TRUE(std::isnan(report.loss));
  EXPECT_TRUE(std::isnan(report.gradient_norm));
}

TEST(Reports, AnEvaluationIsTheMeanOverAllTokens) {
  EvaluationSum sum;
  EXPECT_EQ(sum.Report(3).loss, 0);
  sum.Add(Outputs(30, 0, 10));
  sum.Add(Outputs(10, 0, 30));
  EXPECT_EQ(sum.Report(3).loss, 1);
  EXPECT_EQ(sum.Report(3).tokens, 40);
  EXPECT_EQ(sum.Report(3).step, 3);
}

}  // namespace
}  // namespace shale
