#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "engine/run/verify/trial_run.h"

namespace shale {
namespace {

TEST(LargestDistance, IsRelativeToTheNormOfTheParameter) {
  const ParameterValues b = {{"far", {3, 4}}, {"near", {100, 0}}};
  ParameterValues a = b;
  EXPECT_EQ(LargestDistance(a, b, nullptr), 0);
  a["far"] = {3, 5};
  a["near"] = {102, 0};
  std::string worst;
  EXPECT_DOUBLE_EQ(LargestDistance(a, b, &worst), 0.2);
  EXPECT_EQ(worst, "far");
}

TEST(LargestDistance, MeasuresAVanishingGradientAgainstTheNormOfAll) {
  const ParameterValues b = {{"large", {1000}}, {"rounding", {1e-9f}}};
  const ParameterValues a = {{"large", {1000}}, {"rounding", {-1e-9f}}};
  EXPECT_NEAR(LargestDistance(a, b, nullptr), 2e-9, 1e-15);  // Against 1e-3 x 1000.
}

TEST(LargestDistance, OfWhatIsNotFiniteIsInfinite) {
  const ParameterValues b = {{"a", {1}}, {"b", {1}}, {"c", {1}}};
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    const ParameterValues a = {{"a", {2}}, {"b", {bad}}, {"c", {3}}};
    std::string worst;
    EXPECT_EQ(LargestDistance(a, b, &worst), std::numeric_limits<double>::infinity());
    EXPECT_EQ(worst, "b");
  }
  EXPECT_EQ(LargestDistance({{"a", {1}}}, {{"a", {0}}}, nullptr), std::numeric_limits<double>::infinity());
}

TEST(ReorderedTolerance, FindsALostTarget) {
  for (const int64_t targets : {1, 77, 2048, 5000}) {
    EXPECT_LT(ReorderedTolerance(targets, /*rounded=*/false), 1.0 / static_cast<double>(targets));
  }
}

}  // namespace
}  // namespace shale
