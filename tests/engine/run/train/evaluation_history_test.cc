#include <cmath>
#include <limits>

#include "engine/run/train/run_watch.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

TEST(EvaluationHistory, TheLowestLossIsTheBestAndOthersTakePatience) {
  EvaluationHistory history("texts", /*patience=*/2);
  EXPECT_TRUE(history.Add(10, 3));
  EXPECT_FALSE(history.Add(20, 3)) << "an equal loss is not below";
  EXPECT_FALSE(history.out_of_patience());
  EXPECT_TRUE(history.Add(30, 2.5));
  EXPECT_FALSE(history.Add(40, 2.75));
  EXPECT_FALSE(history.Add(50, 2.625));
  EXPECT_TRUE(history.out_of_patience());
  EXPECT_EQ(history.WhyItEnds(), "the evaluation loss was not below 2.5000, that of step 30, in 2 evaluations");
  EXPECT_TRUE(history.Has(50));
  EXPECT_FALSE(history.Has(40));
}

TEST(EvaluationHistory, ALossThatIsNotFiniteIsNeverTheBest) {
  EvaluationHistory history("texts", /*patience=*/2);
  EXPECT_FALSE(history.Add(1, std::nan("")));
  EXPECT_FALSE(history.saved().best_loss.has_value());
  EXPECT_FALSE(history.Add(2, -std::numeric_limits<double>::infinity()));
  EXPECT_TRUE(history.out_of_patience());
  EXPECT_EQ(history.WhyItEnds(), "the evaluation loss was not finite in 2 evaluations");
  EXPECT_TRUE(history.Add(3, 1e30));
}

TEST(EvaluationHistory, GoesOnAfterACheckpointOfTheSameEvaluationAlone) {
  EvaluationHistory first("texts", /*patience=*/3);
  first.Add(1, 2);
  first.Add(2, 3);
  EvaluationHistory same("texts", /*patience=*/3), other("other texts", /*patience=*/3);
  same.GoOnAfter(first.saved());
  other.GoOnAfter(first.saved());
  EXPECT_EQ(same.saved(), first.saved());
  EXPECT_FALSE(same.Add(3, 2.5));
  EXPECT_TRUE(other.Add(3, 2.5)) << "a loss of other data is no measure";
}

}  // namespace
}  // namespace shale
