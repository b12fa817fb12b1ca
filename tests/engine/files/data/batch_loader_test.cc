#include "engine/files/data/batch_loader.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns a source in which each token is its own position.
TokenSource Counting(int32_t size) {
  std::vector<int32_t> tokens(size);
  std::iota(tokens.begin(), tokens.end(), 0);
  return TokenSource::FromTokens(std::move(tokens)).value();
}

struct Batch {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
};

Batch Load(const BatchLoader& loader, const StepSamples& step, int64_t rank, int64_t micro_batch) {
  const size_t size = loader.shape().micro_batch * loader.shape().sequence_length;
  Batch batch{std::vector<int32_t>(size, 12345), std::vector<int32_t>(size, 12345)};
  const absl::StatusOr<BatchCounts> counts = loader.Fill(
      step, rank, micro_batch, {.inputs = absl::MakeSpan(batch.inputs), .targets = absl::MakeSpan(batch.targets)});
  EXPECT_TRUE(counts.ok()) << counts.status();
  if (!counts.ok()) return batch;
  const auto counted = std::count_if(batch.targets.begin(), batch.targets.end(), [](int32_t t) { return t >= 0; });
  EXPECT_EQ(counts->valid_tokens, counted);
  EXPECT_EQ(counts->weight_total, static_cast<double>(counted));
  return batch;
}

BatchLoader Make(const TokenSource& source, DataOrder data_order, const BatchShape& shape) {
  const SampleOrder order(data_order, 9, SampleCount(source.size(), shape.sequence_length));
  return BatchLoader::Create(source, order, shape).value();
}

TEST(BatchLoaderTest, TargetsAreOneLaterThanInputs) {
  const BatchLoader loader = Make(Counting(7), DataOrder::kSequential,
                                  {.micro_batch = 2, .sequence_length = 3, .ranks = 1, .global_batch = 2});
  const Batch batch = Load(loader, {0, 2}, 0, 0);
  EXPECT_THAT(batch.inputs, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(batch.targets, ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(BatchLoaderTest, OnlyTheLastTokenMayHaveATarget) {
  const BatchLoader loader =
      Make(Counting(7), DataOrder::kSequential,
           {.micro_batch = 2, .sequence_length = 3, .ranks = 1, .global_batch = 2, .targets = TargetPositions::kLast});
  const Batch batch = Load(loader, {0, 2}, 0, 0);
  EXPECT_THAT(batch.inputs, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_THAT(batch.targets, ElementsAre(-1, -1, 3, -1, -1, 6));
}

TEST(BatchLoaderTest, SequencesOfOneTokenWork) {
  const BatchLoader loader = Make(Counting(3), DataOrder::kSequential, {.global_batch = 2});
  EXPECT_EQ(loader.shape().AccumulationSteps(), 2);
  EXPECT_THAT(Load(loader, {0, 2}, 0, 1).inputs, ElementsAre(1));
  EXPECT_THAT(Load(loader, {0, 2}, 0, 1).targets, ElementsAre(2));
}

TEST(BatchLoaderTest, SlotsGoBySequenceThenRankThenMicroBatch) {
  const BatchLoader loader = Make(Counting(100), DataOrder::kSequential,
                                  {.micro_batch = 2, .sequence_length = 1, .ranks = 3, .global_batch = 12});
  EXPECT_THAT(Load(loader, {0, 12}, 0, 0).inputs, ElementsAre(0, 1));
  EXPECT_THAT(Load(loader, {0, 12}, 1, 0).inputs, ElementsAre(2, 3));
  EXPECT_THAT(Load(loader, {0, 12}, 2, 0).inputs, ElementsAre(4, 5));
  EXPECT_THAT(Load(loader, {0, 12}, 0, 1).inputs, ElementsAre(6, 7));
  EXPECT_THAT(Load(loader, {40, 12}, 2, 1).inputs, ElementsAre(50, 51));
}

TEST(BatchLoaderTest, MissingSamplesAreMasked) {
  const BatchLoader loader = Make(Counting(100), DataOrder::kSequential,
                                  {.micro_batch = 2, .sequence_length = 2, .ranks = 2, .global_batch = 5});
  EXPECT_EQ(loader.shape().AccumulationSteps(), 2);
  const Batch half = Load(loader, {10, 5}, 0, 1);  // Sample 4 of the step, and no sample.
  EXPECT_THAT(half.inputs, ElementsAre(28, 29, 0, 0));
  EXPECT_THAT(half.targets, ElementsAre(29, 30, -1, -1));
  const Batch none = Load(loader, {10, 5}, 1, 1);
  EXPECT_THAT(none.inputs, Each(0));
  EXPECT_THAT(none.targets, Each(-1));
  EXPECT_THAT(Load(loader, {10, 0}, 0, 0).targets, Each(-1));
}

// W and K are free to choose because they change neither the samples of a step nor their contents.
TEST(BatchLoaderTest, RanksAndMicroBatchesDoNotChangeTheSamples) {
  const TokenSource source = Counting(1000);
  const int64_t length = 3;
  for (const int64_t count : {13, 7, 1, 0}) {
    for (const int64_t position : {0, 330, 1000}) {  // 330: the step crosses the end of the first epoch of 333.
      std::vector<std::vector<int32_t>> expected;
      for (const int64_t ranks : {1, 2, 3, 4, 8, 16}) {
        for (const int64_t micro_batch : {1, 2, 3, 13}) {
          const BatchLoader loader =
              Make(source, DataOrder::kShuffled,
                   {.micro_batch = micro_batch, .sequence_length = length, .ranks = ranks, .global_batch = 13});
          std::vector<std::vector<int32_t>> found;
          for (int64_t k = 0; k < loader.shape().AccumulationSteps(); ++k) {
            for (int64_t r = 0; r < ranks; ++r) {
              const Batch batch = Load(loader, {position, count}, r, k);
              for (int64_t b = 0; b < micro_batch; ++b) {
                if (batch.targets[b * length] < 0) continue;
                found.emplace_back(batch.inputs.begin() + b * length, batch.inputs.begin() + (b + 1) * length);
                EXPECT_EQ(batch.targets[b * length + 2], found.back()[2] + 1);
              }
            }
          }
          if (expected.empty()) expected = found;
          EXPECT_EQ(found.size(), count);
          EXPECT_EQ(found, expected) << ranks << " ranks, micro-batch " << micro_batch;
        }
      }
    }
  }
}

TEST(BatchLoaderTest, AnEpochReadsEverySampleOnce) {
  const BatchLoader loader =
      Make(Counting(34), DataOrder::kShuffled, {.micro_batch = 2, .sequence_length = 3, .ranks = 2, .global_batch = 4});
  ASSERT_EQ(loader.samples_per_epoch(), 11);
  std::vector<int32_t> starts;
  for (int64_t position = 0; position < 11; position += 4) {
    for (int64_t rank = 0; rank < 2; ++rank) {
      const Batch batch = Load(loader, {position, std::min<int64_t>(4, 11 - position)}, rank, 0);
      for (int64_t b = 0; b < 2; ++b) {
        if (batch.targets[b * 3] >= 0) starts.push_back(batch.inputs[b * 3]);
      }
    }
  }
  std::sort(starts.begin(), starts.end());
  EXPECT_THAT(starts, ElementsAre(0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30));
}

TEST(BatchLoaderTest, RanksReadAtOnce) {
  const BatchLoader loader = Make(Counting(5000), DataOrder::kShuffled,
                                  {.micro_batch = 2, .sequence_length = 7, .ranks = 4, .global_batch = 32});
  std::vector<std::thread> ranks;
  for (int64_t rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&loader, rank] {
      for (int64_t step = 0; step < 50; ++step) {
        for (int64_t k = 0; k < 4; ++k) {
          const Batch batch = Load(loader, {step * 32, 32}, rank, k);
          for (size_t i = 0; i < batch.inputs.size(); ++i) ASSERT_EQ(batch.targets[i], batch.inputs[i] + 1);
        }
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// Features 10 n + i of sample n, and target values with the opposite sign. A sample may have a value that is not
// finite.
class Rows : public DataSource {
 public:
  explicit Rows(bool has_weights, int64_t bad_sample = -1)
      : DataSource({.name = "rows",
                    .samples = 9,
                    .sequence_length = 2,
                    .features = 3,
                    .target_values = 1,
                    .has_weights = has_weights}),
        bad_sample_(bad_sample) {}
  absl::Status Read(int64_t sample, const SampleParts& out) override {
    for (int64_t i = 0; i < 6; ++i) out.features[i] = static_cast<float>(10 * sample + i);
    for (int64_t s = 0; s < 2; ++s) out.target_values[s] = -static_cast<float>(10 * sample + s);
    for (float& weight : out.weights) weight = -0.5f;
    if (sample == bad_sample_) out.features[4] = HUGE_VALF;
    return absl::OkStatus();
  }

 private:
  const int64_t bad_sample_;
};

TEST(BatchLoaderTest, TargetValuesHaveWeightsThatHideMissingSamples) {
  for (const bool has_weights : {false, true}) {
    for (const TargetPositions targets : {TargetPositions::kEvery, TargetPositions::kLast}) {
      BatchLoader loader =
          BatchLoader::Create(std::make_shared<Rows>(has_weights), SampleOrder(DataOrder::kSequential, 1, 9),
                              {.micro_batch = 2, .sequence_length = 2, .ranks = 1, .global_batch = 3})
              .value();
      loader.Expect(targets, 0, 0);
      std::vector<float> features(12, 77), values(4, 77), weights(4, 77);
      const absl::StatusOr<BatchCounts> counts = loader.Fill({3, 3}, 0, 1,
                                                             {.features = absl::MakeSpan(features),
                                                              .target_values = absl::MakeSpan(values),
                                                              .weights = absl::MakeSpan(weights)});
      ASSERT_TRUE(counts.ok()) << counts.status();
      EXPECT_THAT(features, ElementsAre(50, 51, 52, 53, 54, 55, 0, 0, 0, 0, 0, 0));
      EXPECT_THAT(values, ElementsAre(-50, -51, 0, 0));
      const float weight = has_weights ? -0.5f : 1;
      EXPECT_THAT(weights, ElementsAre(weight, weight, 0, 0));
      EXPECT_EQ(counts->valid_tokens, targets == TargetPositions::kEvery ? 2 : 1);
      EXPECT_EQ(counts->weight_total, std::abs(weight) * static_cast<double>(counts->valid_tokens));
    }
  }
}

TEST(BatchLoaderTest, NumbersThatAreNotFiniteAreNamed) {
  const BatchLoader loader =
      BatchLoader::Create(std::make_shared<Rows>(false, 6), SampleOrder(DataOrder::kSequential, 1, 9),
                          {.sequence_length = 2, .global_batch = 1})
          .value();
  std::vector<float> features(6), values(2), weights(2);
  const absl::Status status = loader
                                  .Fill({15, 1}, 0, 0,
                                        {.features = absl::MakeSpan(features),
                                         .target_values = absl::MakeSpan(values),
                                         .weights = absl::MakeSpan(weights)})
                                  .status();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(status.message(),
            "position 15 of the data (sample 6 of \"rows\"): feature 4 is inf; wanted a finite number");
}

// Regression: every number below 0 masked a target without a word, also -100, which other libraries mask with.
TEST(BatchLoaderTest, OnlyMinusOneMasksATarget) {
  class Target : public DataSource {
   public:
    explicit Target(int32_t target) : DataSource({.name = "target", .samples = 1}), target_(target) {}
    absl::Status Read(int64_t, const SampleParts& out) override {
      out.inputs[0] = 3;
      out.targets[0] = target_;
      return absl::OkStatus();
    }

   private:
    const int32_t target_;
  };
  for (const int64_t classes : {0, 9}) {  // 0: not known.
    for (const int32_t target : {-100, -2, -1, 8, 9}) {
      BatchLoader loader =
          BatchLoader::Create(std::make_shared<Target>(target), SampleOrder(DataOrder::kSequential, 1, 1), BatchShape())
              .value();
      loader.Expect(TargetPositions::kEvery, 9, classes);
      std::vector<int32_t> inputs(1), targets(1);
      const absl::StatusOr<BatchCounts> counts =
          loader.Fill({0, 1}, 0, 0, {.inputs = absl::MakeSpan(inputs), .targets = absl::MakeSpan(targets)});
      const bool good = target == -1 || target == 8 || (target == 9 && classes == 0);
      ASSERT_EQ(counts.ok(), good) << target << " of " << classes;
      if (good) {
        EXPECT_EQ(counts->valid_tokens, target == -1 ? 0 : 1);
      } else {
        EXPECT_THAT(counts.status().message(),
                    HasSubstr(absl::StrCat("target 0 is ", target, "; the model allows 0 ")));
      }
    }
  }
}

TEST(BatchLoaderTest, RefusesWhatDoesNotFitTogether) {
  const auto refusal = [](const TokenSource& source, int64_t samples, const BatchShape& shape) {
    const SampleOrder order(DataOrder::kShuffled, 1, samples);
    return std::string(BatchLoader::Create(source, order, shape).status().message());
  };
  EXPECT_THAT(refusal(Counting(10), 1, {.sequence_length = 10}), HasSubstr("10 tokens found, but one sequence of 10"));
  EXPECT_THAT(refusal(Counting(10), 8, {.sequence_length = 1}),
              HasSubstr("the order is one of 8 samples, but the data has 9 of length 1"));
  EXPECT_THAT(refusal(Counting(10), 9, {.micro_batch = 0}), HasSubstr("the micro batch must lie in 1 to 2147483647"));
  EXPECT_THAT(refusal(Counting(10), 9, {.ranks = -1}), HasSubstr("number of ranks"));
  EXPECT_THAT(refusal(Counting(10), 9, {.global_batch = int64_t{1} << 40}), HasSubstr("global batch"));
}

}  // namespace
}  // namespace shale
