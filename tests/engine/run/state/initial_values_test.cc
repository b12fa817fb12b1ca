#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "engine/run/state/filling.h"

namespace shale {
namespace {

constexpr int64_t kElements = 100003;

Parameter Normal(std::string name) {
  return {.name = std::move(name),
          .shape = {kElements},
          .initializer = {.kind = Initializer::Kind::kNormal, .standard_deviation = 0.5}};
}

std::vector<float> Filled(const Parameter& parameter, int64_t begin = 0, int64_t end = kElements, uint64_t seed = 1) {
  std::vector<float> values(end - begin);
  FillInitialValues(parameter, seed, begin, absl::MakeSpan(values));
  return values;
}

TEST(InitialValues, DoNotDependOnWhereTheyAreCut) {
  const std::vector<float> whole = Filled(Normal("w"));
  for (int64_t cut : {1, 2, 777, 50000, 50001}) {
    std::vector<float> joined = Filled(Normal("w"), 0, cut);
    const std::vector<float> rest = Filled(Normal("w"), cut, kElements);
    joined.insert(joined.end(), rest.begin(), rest.end());
    EXPECT_EQ(joined, whole) << cut;
  }
}

TEST(InitialValues, DependOnSeedAndName) {
  const std::vector<float> w = Filled(Normal("w"));
  EXPECT_NE(Filled(Normal("v")), w);
  EXPECT_NE(Filled(Normal("w"), 0, kElements, /*seed=*/2), w);
}

// The mean of n values deviates by sigma / sqrt(n), their variance by sigma^2 sqrt(2 / n), and the mean product of
// neighbors by sigma^2 / sqrt(n). Five times that is exceeded once in a million draws, and this draw is always the
// same.
TEST(InitialValues, AreNormal) {
  const std::vector<float> values = Filled(Normal("w"));
  double sum = 0, squares = 0, neighbours = 0, beyond = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    sum += values[i];
    squares += values[i] * values[i];
    if (i > 0) neighbours += values[i] * values[i - 1];
    beyond += std::abs(values[i]) > 1 ? 1 : 0;
  }
  const double n = kElements, root = std::sqrt(n);
  EXPECT_NEAR(sum / n, 0, 5 * 0.5 / root);
  EXPECT_NEAR(squares / n, 0.25, 5 * 0.25 * std::sqrt(2.0) / root);
  EXPECT_NEAR(neighbours / n, 0, 5 * 0.25 / root);
  EXPECT_NEAR(beyond / n, 0.0455, 5 * std::sqrt(0.0455 / n));  // Beyond two standard deviations.
}

// The bounds of the mean and of the variance are those of AreNormal, with the fourth moment of a uniform value.
TEST(InitialValues, AreUniform) {
  Parameter parameter = Normal("w");
  parameter.initializer.kind = Initializer::Kind::kUniform;
  const std::vector<float> values = Filled(parameter);
  double sum = 0, squares = 0;
  for (const float value : values) {
    sum += value;
    squares += value * value;
    EXPECT_LE(std::abs(value), std::sqrt(3.0f) * 0.5f);
  }
  const double n = kElements, root = std::sqrt(n);
  EXPECT_NEAR(sum / n, 0, 5 * 0.5 / root);
  EXPECT_NEAR(squares / n, 0.25, 5 * 0.25 * std::sqrt(0.8) / root);
  std::vector<float> joined = Filled(parameter, 0, 777);
  const std::vector<float> rest = Filled(parameter, 777, kElements);
  joined.insert(joined.end(), rest.begin(), rest.end());
  EXPECT_EQ(joined, values);
}

TEST(InitialValues, OfBiasesAndGainsAreConstant) {
  Parameter parameter = Normal("b");
  parameter.initializer.kind = Initializer::Kind::kZeros;
  EXPECT_EQ(Filled(parameter), std::vector<float>(kElements, 0.0f));
  parameter.initializer.kind = Initializer::Kind::kOnes;
  EXPECT_EQ(Filled(parameter), std::vector<float>(kElements, 1.0f));
}

}  // namespace
}  // namespace shale
