#include "engine/api/sampler.h"

#include <algorithm>
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

TEST(SamplerTest, TopPDrawsAmongTheFewestThatSumToP) {
  // Probabilities of 0.5, 0.25, 0.125 and 0.125 at temperature 1.
  const float two = std::log(2.0f);
  const std::vector<float> logits = {0, 2 * two, two, 0};
  const auto drawn = [&](double top_p) {
    const std::vector<int> counts = Histogram({.temperature = 1, .top_k = 0, .top_p = top_p}, logits, 2000);
    std::vector<int> tokens;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] > 0) tokens.push_back(static_cast<int>(i));
    }
    return tokens;
  };
  EXPECT_THAT(drawn(1e-9), ::testing::ElementsAre(1));
  EXPECT_THAT(drawn(0.49), ::testing::ElementsAre(1));
  EXPECT_THAT(drawn(0.51), ::testing::ElementsAre(1, 2));
  EXPECT_THAT(drawn(0.8), ::testing::ElementsAre(0, 1, 2));
  EXPECT_THAT(drawn(1), ::testing::ElementsAre(0, 1, 2, 3));
  // What is left is drawn as often as its probabilities say: 2 to 1.
  const std::vector<int> counts = Histogram({.temperature = 1, .top_k = 0, .top_p = 0.7}, logits, 30000);
  EXPECT_NEAR(counts[1], 20000, 5 * std::sqrt(30000 * 2 / 9.0));
}

TEST(SamplerTest, MinPDrawsAmongThoseNotMuchLessLikely) {
  const std::vector<float> logits = {0, 1, 3, 2.5f};
  const auto most = [&](double min_p) {
    const std::vector<int> counts = Histogram({.temperature = 1, .top_k = 0, .min_p = min_p}, logits, 3000);
    return std::count_if(counts.begin(), counts.end(), [](int count) { return count > 0; });
  };
  EXPECT_EQ(most(0), 4);
  EXPECT_EQ(most(0.1), 3);  // e^-2 is 0.135, and e^-3 is 0.05.
  EXPECT_EQ(most(0.2), 2);
  EXPECT_EQ(most(1), 1);
}

TEST(SamplerTest, ARepetitionPenaltyMakesTokensOfTheTextLessLikely) {
  Sampler sampler({.repetition_penalty = 2, .temperature = 0});
  // A token counts once however often it came, and a negative logit becomes smaller.
  EXPECT_EQ(*sampler.Draw({3, 2, -1}, {}), 0);
  EXPECT_EQ(*sampler.Draw({3, 2, -1}, {0, 0, 0}), 1);
  EXPECT_EQ(*sampler.Draw({4.5f, 2, -1}, {0, 0}), 0);
  EXPECT_EQ(*sampler.Draw({-1, -1.5f}, {0}), 1);
}

TEST(SamplerTest, OptionsOutOfRangeAreNamed) {
  const auto message = [](const SamplingOptions& options) { return std::string(CheckSampling(options).message()); };
  EXPECT_EQ(message({}), "");
  EXPECT_EQ(message({.repetition_penalty = 0}), "repetition_penalty is 0; wanted a number above 0");
  EXPECT_EQ(message({.temperature = -1}), "temperature is -1; wanted 0 or more");
  EXPECT_EQ(message({.temperature = std::nan("")}), "temperature is nan; wanted 0 or more");
  EXPECT_EQ(message({.top_k = -1}), "top_k is -1; wanted 0 or more");
  EXPECT_EQ(message({.top_p = 0}), "top_p is 0; wanted a number above 0 and up to 1");
  EXPECT_EQ(message({.min_p = 1.5}), "min_p is 1.5; wanted a number from 0 to 1");
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
