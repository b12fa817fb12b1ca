#include "engine/run/events/event_json.h"

#include <cmath>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

TEST(EventJsonTest, AStepHasAllItsFieldsInOrder) {
  StepReport report{.step = 3, .tokens = 96, .step_tokens = 32, .loss = 2.5, .gradient_norm = 0.25};
  report.learning_rate = 1e-3;
  report.updated = false;
  report.seconds = 0.5;
  report.tokens_per_second = 64;
  report.peak_bytes_planned = int64_t{1} << 40;
  EXPECT_EQ(EventFields({.what = report}).ToString(),
            R"({"step": 3, "tokens": 96, "loss": 2.5, "grad_norm": 0.25, "learning_rate": 0.001, "updated": false, )"
            R"("seconds": 0.5, "tokens_per_second": 64, "mfu": 0, "peak_bytes_planned": 1099511627776, )"
            R"("peak_bytes_measured": 0, "processed_tokens": 0})");
}

TEST(EventJsonTest, WhatWasPredictedIsThereIfItWas) {
  EXPECT_THAT(EventFields({.what = StepReport{.step = 1, .predicted_seconds = 0.5}}).ToString(),
              ::testing::HasSubstr(R"("predicted_seconds": 0.5)"));
}

TEST(EventJsonTest, MetricsOfTheProgramAreAnObjectAtTheEnd) {
  const StepReport report{.step = 3, .metrics = {{"kl/mean", -0.5}, {"reward", 2}}};
  EXPECT_THAT(EventFields({.what = report}).ToString(),
              ::testing::EndsWith(
                  R"("peak_bytes_measured": 0, "processed_tokens": 0, "metrics": {"kl/mean": -0.5, "reward": 2}})"));
}

TEST(EventJsonTest, WhatIsNotFiniteIsNull) {
  EXPECT_EQ(EventFields({.what = EvaluationReport{.step = 1, .loss = std::nan(""), .tokens = 2}}).ToString(),
            R"({"step": 1, "evaluation_loss": null, "evaluation_tokens": 2})");
}

TEST(EventJsonTest, AnEvaluationNamesItsSources) {
  EXPECT_EQ(
      EventFields(
          {.what = EvaluationReport{.step = 1, .loss = 2, .tokens = 3, .sources = {{"a", 1.5, 2}, {"b-1", 3, 1}}}})
          .ToString(),
      R"({"step": 1, "evaluation_loss": 2, "evaluation_tokens": 3, "evaluation_sources": {"a": 1.5, "b-1": 3}})");
}

TEST(EventJsonTest, ALineSaysWhatHappenedAndWhen) {
  const auto line = [](auto what) { return EventLine({.unix_seconds = 1.5, .what = what}).ToString(); };
  EXPECT_EQ(line(Progress{StartStage::kRestoring}), R"({"event": "progress", "time": 1.5, "stage": "RESTORING"})");
  EXPECT_EQ(line(Warning{"a \"b\""}), R"({"event": "warning", "time": 1.5, "text": "a \"b\""})");
  EXPECT_EQ(line(Finished{.step = 2, .total_steps = 4}),
            R"({"event": "finished", "time": 1.5, "step": 2, "total_steps": 4})");
  EXPECT_EQ(line(Finished{.step = 2, .total_steps = 4, .ended_early = "why"}),
            R"({"event": "finished", "time": 1.5, "step": 2, "total_steps": 4, "ended_early": "why"})");
  EXPECT_EQ(line(Failure{.status = absl::DataLossError("no"), .culprit = "step", .step = 7}),
            R"({"event": "failure", "time": 1.5, "code": "DATA_LOSS", "culprit": "step", "text": "no", "step": 7})");
  EXPECT_EQ(line(PlanReady{.name = "a",
                           .parameters = 1,
                           .ranks = 2,
                           .accumulation_steps = 3,
                           .total_steps = 4,
                           .arena_bytes = 5,
                           .host_arena_bytes = 6}),
            R"({"event": "plan_ready", "time": 1.5, "name": "a", "parameters": 1, "ranks": 2, )"
            R"("accumulation_steps": 3, "total_steps": 4, "arena_bytes": 5, "host_arena_bytes": 6})");
}

TEST(EventJsonTest, ASaveThatFailedIsAWarning) {
  CheckpointReport report{.step = 5, .path = "a/b", .bytes = 10, .seconds = 0.5};
  EXPECT_EQ(EventLine({.what = report}).ToString(),
            R"({"event": "checkpoint", "time": 0, "step": 5, "path": "a/b", "bytes": 10, "seconds": 0.5})");
  report.status = absl::ResourceExhaustedError("the disk is full");
  EXPECT_EQ(EventLine({.what = report}).ToString(),
            R"({"event": "warning", "time": 0, "text": "the state after step 5 was not saved: the disk is full"})");
}

}  // namespace
}  // namespace shale
