#include <cmath>

#include "engine/run/train/run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

StepReport Report(int64_t step) {
  StepReport report;
  report.step = step;
  report.step_tokens = report.processed_tokens = 17060;
  report.loss = 2.73118;
  report.gradient_norm = 0.8134;
  report.learning_rate = 1.2e-3;
  report.seconds = 0.5;
  report.tokens_per_second = 34120;
  report.mfu = 0.412;
  report.peak_bytes_measured = int64_t{212} << 20;
  return report;
}

TEST(ConsoleTest, AStepIsOneLine) {
  Console console(400, 1);
  EXPECT_EQ(console.Step(Report(12)),
            "step  12/400  loss 2.7312  norm 0.813  lr 1.20e-03  34,120 tok/s  mfu 41.2%  memory 212 MiB  eta 3m 14s");
}

// Regression: a run on conversations showed a third of its speed, because only the tokens of answers were counted.
TEST(ConsoleTest, TokensThatCountStandBesideAllOfThem) {
  Console console(1000000, 1);
  StepReport report = Report(1234);
  report.step_tokens = 5000;
  EXPECT_EQ(console.Step(report),
            "step     1,234/1,000,000  loss 2.7312  norm 0.813  lr 1.20e-03  34,120 tok/s (10,000 counted)  mfu 41.2%  "
            "memory 212 MiB  eta 5d 18h");
}

TEST(ConsoleTest, WithoutAPeakThereIsNoMfu) {
  Console console(400, 1);
  StepReport report = Report(1);
  report.mfu = 0;
  EXPECT_THAT(*console.Step(report), HasSubstr("34,120 tok/s  memory"));
}

TEST(ConsoleTest, EveryNthStepPrintsAveragesSinceTheLastLine) {
  Console console(10, 4);
  EXPECT_TRUE(console.Step(Report(1)).has_value());
  EXPECT_FALSE(console.Step(Report(2)).has_value());
  StepReport slow = Report(3);
  slow.seconds = 2;
  slow.mfu = 0.103;
  EXPECT_FALSE(console.Step(slow).has_value());
  // 3 x 17,060 tokens in 3 seconds.
  const std::optional<std::string> line = console.Step(Report(4));
  ASSERT_TRUE(line.has_value());
  EXPECT_THAT(*line, HasSubstr("17,060 tok/s  mfu 20.6%"));
  for (int64_t step = 5; step <= 7; ++step) EXPECT_FALSE(console.Step(Report(step)).has_value());
  EXPECT_TRUE(console.Step(Report(8)).has_value());
  EXPECT_FALSE(console.Step(Report(9)).has_value());
  EXPECT_THAT(*console.Step(Report(10)), EndsWith("eta 0s"));
}

TEST(ConsoleTest, TheFirstStepDoesNotSpoilTheTimeLeft) {
  Console console(102, 1);
  StepReport first = Report(1);
  first.seconds = 30;
  EXPECT_THAT(*console.Step(first), EndsWith("eta 50m 30s"));
  EXPECT_THAT(*console.Step(Report(2)), EndsWith("eta 50s"));
}

TEST(ConsoleTest, AStepThatChangedNothingSaysWhyAlthoughItIsNotDue) {
  Console console(100, 50);
  console.Step(Report(1));
  StepReport report = Report(2);
  report.updated = false;
  report.loss = report.gradient_norm = std::nan("");
  EXPECT_THAT(*console.Step(report), EndsWith("(not finite: update skipped)"));
  report.step = 3;
  report.loss = report.gradient_norm = 0;
  report.step_tokens = 0;
  EXPECT_THAT(*console.Step(report), EndsWith("(no valid token: weights unchanged)"));
}

TEST(ConsoleTest, AnEvaluationHasALineAndOneForEachSource) {
  EXPECT_EQ(Console::Evaluation(100, {.loss = 2.5, .tokens = 16384}),
            "evaluation at step 100  loss 2.5000  perplexity 12.18  over 16,384 tokens");
  EXPECT_EQ(Console::Evaluation(7, {.loss = 1, .tokens = 3, .sources = {{"code", 0, 2}, {"chats", 3, 1}}}),
            "evaluation at step 7  loss 1.0000  perplexity 2.72  over 3 tokens\n"
            "  code  loss 0.0000  perplexity 1.00  over 2 tokens\n"
            "  chats  loss 3.0000  perplexity 20.09  over 1 tokens");
}

}  // namespace
}  // namespace shale
