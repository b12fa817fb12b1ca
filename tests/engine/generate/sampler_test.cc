#include "engine/generate/sampler.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Returns how often each token is drawn.
std::vector<int> Histogram(const SamplingOptions& options, const std::vector<float>& logits, int draws) {
  Sampler sampler(options);
  std::vector<int> counts(logits.size());
  for (int i = 0; i < draws; ++i) ++counts[*sampler.Draw(logits)];
  return counts;
}

TEST(SamplerTest, FrequenciesFollowTheSoftmaxOfLogitsOverTemperature) {
  const std::vector<float> logits = {0, 1, 2, -1};
  for (const double temperature : {0.5, 1.0, 3.0}) {
    constexpr int kDraws = 20000;
    const std::vector<int> counts = Histogram({.temperature = temperature, .top_k = 0}, logits, kDraws);
    double sum = 0;
    for (float logit : logits) sum += std::exp(logit / temperature);
    for (size_t i = 0; i < logits.size(); ++i) {
      const double p = std::exp(logits[i] / temperature) / sum;
      // Five standard deviations of a binomial count.
      EXPECT_NEAR(counts[i], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p))) << i << " at " << temperature;
    }
  }
}

TEST(SamplerTest, TopKDrawsAmongTheKMostLikelyOnly) {
  const std::vector<int> counts = Histogram({.temperature = 5, .top_k = 2}, {3, 1, 2, 0}, 500);
  EXPECT_GT(counts[0], 0);
  EXPECT_GT(counts[2], 0);
  EXPECT_EQ(counts[1] + counts[3], 0);
}

TEST(SamplerTest, TemperatureZeroTakesTheMostLikelyAndOfEqualsTheFirst) {
  EXPECT_EQ(Histogram({.temperature = 0}, {1, 7, 7, 3}, 20)[1], 20);
}

TEST(SamplerTest, TheSameSeedDrawsTheSameTokens) {
  const std::vector<float> logits(100, 0.0f);
  Sampler a({.seed = 3}), b({.seed = 3}), c({.seed = 4});
  int differences = 0;
  for (int i = 0; i < 50; ++i) {
    const int32_t token = *a.Draw(logits);
    EXPECT_EQ(token, *b.Draw(logits));
    differences += token != *c.Draw(logits);
  }
  EXPECT_GT(differences, 0);
}

TEST(SamplerTest, ImpossibleTokensAreNeverDrawn) {
  const std::vector<int> counts = Histogram({.temperature = 1, .top_k = 0}, {-kInfinity, 0, -kInfinity, 1}, 200);
  EXPECT_EQ(counts[0] + counts[2], 0);
  EXPECT_EQ(*Sampler({}).Draw({-kInfinity, -kInfinity}), 0);
}

TEST(SamplerTest, VeryLargeLogitsAndSmallTemperaturesDoNotOverflow) {
  EXPECT_EQ(Histogram({.temperature = 1e-3, .top_k = 0}, {3e38f, -3e38f, 0}, 20)[0], 20);
}

TEST(SamplerTest, LogitsThatAreNoNumbersAreRefused) {
  for (const float bad : {std::nanf(""), kInfinity}) {
    const absl::Status status = Sampler({}).Draw({0, bad}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(status.message()), HasSubstr("gives token 1 the logit"));
  }
}

}  // namespace
}  // namespace shale
