#include "engine/run/train/batch_prefetcher.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/files/data/batch_loader.h"
#include "engine/files/data/sample_order.h"
#include "engine/files/data/token_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr StepSamples kNone;

// Stands for data whose reads can be held up and can fail. The tokens of a batch are the number of its first sample.
class FakeData {
 public:
  std::unique_ptr<BatchPrefetcher> Prefetch() {
    auto prefetcher = BatchPrefetcher::Create(Buffer(), Buffer());
    EXPECT_TRUE(prefetcher.ok()) << prefetcher.status();
    return *std::move(prefetcher);
  }

  // Lets reads of the batch at `begin` begin, but not end, until Release.
  void Hold(int64_t begin) {
    std::lock_guard lock(mutex_);
    held_ = begin;
  }
  void Release() {
    std::lock_guard lock(mutex_);
    held_ = -1;
    changed_.notify_all();
  }
  // Makes later reads of the batch at `begin` fail; -1: none.
  void FailAt(int64_t begin) {
    std::lock_guard lock(mutex_);
    failing_ = begin;
  }
  // Waits until so many reads have begun. Returns the first samples of all of them.
  std::vector<int64_t> Reads(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reads_.size() >= count; });
    return reads_;
  }

 private:
  BatchPrefetcher::ReadBatch Buffer() {
    return [this, buffer = std::make_shared<std::vector<int32_t>>(3)](
               const StepSamples& samples) -> absl::StatusOr<std::vector<StepInputs>> {
      std::unique_lock lock(mutex_);
      reads_.push_back(samples.begin);
      changed_.notify_all();
      changed_.wait(lock, [&] { return held_ != samples.begin; });
      if (samples.begin == failing_) return absl::DataLossError(absl::StrCat("cannot read ", samples.begin));
      buffer->assign(3, static_cast<int32_t>(samples.begin));
      StepInputs inputs;
      inputs.Set(StepItem::kInputs, *buffer);
      return std::vector<StepInputs>{inputs};
    };
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t held_ = -1, failing_ = -1;
  std::vector<int64_t> reads_;
};

// Returns the token of the batch.
int32_t TokenOf(const absl::StatusOr<std::vector<StepInputs>>& inputs) {
  EXPECT_TRUE(inputs.ok()) << inputs.status();
  return inputs.ok() ? inputs->at(0).Get<int32_t>(StepItem::kInputs)[0] : -1;
}

TEST(BatchPrefetcher, ReadsEachBatchOnceInOrder) {
  FakeData data;
  const auto prefetcher = data.Prefetch();
  for (int64_t begin = 0; begin < 50; begin += 5) {
    EXPECT_EQ(TokenOf(prefetcher->Take({begin, 5}, begin < 45 ? StepSamples{begin + 5, 5} : kNone)), begin);
  }
  EXPECT_THAT(data.Reads(10), ElementsAre(0, 5, 10, 15, 20, 25, 30, 35, 40, 45));
}

TEST(BatchPrefetcher, ReadsWhileAStepRunsWithoutChangingItsInputs) {
  FakeData data;
  const auto prefetcher = data.Prefetch();
  const auto first = prefetcher->Take({0, 1}, {1, 1});
  EXPECT_THAT(data.Reads(2), ElementsAre(0, 1));
  const auto second = prefetcher->Take({1, 1}, kNone);
  // Batch 1 was read into the other buffer.
  EXPECT_EQ(TokenOf(first), 0);
  EXPECT_EQ(TokenOf(second), 1);
}

TEST(BatchPrefetcher, TakeWaitsForAReadThatIsUnderWay) {
  FakeData data;
  const auto prefetcher = data.Prefetch();
  data.Hold(1);
  EXPECT_EQ(TokenOf(prefetcher->Take({0, 1}, {1, 1})), 0);
  data.Reads(2);
  std::thread release([&] { data.Release(); });
  EXPECT_EQ(TokenOf(prefetcher->Take({1, 1}, kNone)), 1);
  release.join();
  EXPECT_THAT(data.Reads(2), ElementsAre(0, 1));
}

TEST(BatchPrefetcher, AnErrorIsReturnedByTheStepThatNeedsTheData) {
  FakeData data;
  data.FailAt(1);
  const auto prefetcher = data.Prefetch();
  EXPECT_EQ(TokenOf(prefetcher->Take({0, 1}, {1, 1})), 0);
  data.Reads(2);
  const absl::Status status = prefetcher->Take({1, 1}, {2, 1}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot read 1"));
  // The step is tried again when the data can be read.
  data.FailAt(-1);
  EXPECT_EQ(TokenOf(prefetcher->Take({1, 1}, {2, 1})), 1);
  EXPECT_EQ(TokenOf(prefetcher->Take({2, 1}, kNone)), 2);
  EXPECT_THAT(data.Reads(4), ElementsAre(0, 1, 1, 2));
}

TEST(BatchPrefetcher, AnErrorOfABatchThatNobodyTakesIsOfNoConsequence) {
  FakeData data;
  data.FailAt(1);
  const auto prefetcher = data.Prefetch();
  EXPECT_EQ(TokenOf(prefetcher->Take({0, 1}, {1, 1})), 0);
  EXPECT_EQ(TokenOf(prefetcher->Take({7, 1}, kNone)), 7);
}

TEST(BatchPrefetcher, OtherSamplesThanWereExpectedAreReadAnew) {
  FakeData data;
  const auto prefetcher = data.Prefetch();
  EXPECT_EQ(TokenOf(prefetcher->Take({0, 4}, {4, 4})), 0);
  EXPECT_EQ(TokenOf(prefetcher->Take({20, 4}, {24, 4})), 20);
  EXPECT_EQ(TokenOf(prefetcher->Take({24, 3}, kNone)), 24);  // Begins there, but is shorter.
  EXPECT_EQ(TokenOf(prefetcher->Take({24, 3}, kNone)), 24);  // None was expected.
  EXPECT_THAT(data.Reads(6), ElementsAre(0, 4, 20, 24, 24, 24));
}

TEST(BatchPrefetcher, EndsInAnyState) {
  FakeData data;
  data.Prefetch();
  {
    const auto idle = data.Prefetch();
    EXPECT_EQ(TokenOf(idle->Take({0, 1}, kNone)), 0);
  }
  {
    const auto read = data.Prefetch();
    EXPECT_EQ(TokenOf(read->Take({0, 1}, {1, 1})), 0);
  }
}

TEST(BatchPrefetcher, EndsWhileItReads) {
  FakeData data;
  auto prefetcher = data.Prefetch();
  data.Hold(1);
  EXPECT_EQ(TokenOf(prefetcher->Take({0, 1}, {1, 1})), 0);
  data.Reads(2);
  std::thread release([&] { data.Release(); });
  prefetcher.reset();
  release.join();
}

// Two ranks and two micro-batches of real tokens, while another thread reads from the same loader, as an evaluation
// does from the same files.
TEST(BatchPrefetcher, ReturnsWhatAHostBatchReturns) {
  std::vector<int32_t> tokens(1000);
  std::iota(tokens.begin(), tokens.end(), 0);
  const TokenSource source = TokenSource::FromTokens(std::move(tokens)).value();
  const BatchShape shape = {.micro_batch = 2, .sequence_length = 7, .ranks = 2, .global_batch = 7};
  const SampleOrder order(DataOrder::kShuffled, 3, SampleCount(source.size(), shape.sequence_length));
  const BatchLoader loader = BatchLoader::Create(source, order, shape).value();
  const auto prefetcher = BatchPrefetcher::Create(loader, shape.AccumulationSteps());
  ASSERT_TRUE(prefetcher.ok()) << prefetcher.status();
  SampleBatch expected(loader, shape.AccumulationSteps());
  for (int64_t step = 0; step < 30; ++step) {
    const StepSamples samples = {step * 7, 7}, next = {step * 7 + 7, 7};
    const auto inputs = (*prefetcher)->Take(samples, next);
    const auto wanted = expected.Fill(samples);
    ASSERT_TRUE(inputs.ok() && wanted.ok());
    ASSERT_EQ(inputs->size(), 2);
    for (size_t rank = 0; rank < 2; ++rank) {
      for (const StepItem item : {StepItem::kInputs, StepItem::kTargets}) {
        EXPECT_EQ((*inputs)[rank].Get<int32_t>(item), (*wanted)[rank].Get<int32_t>(item));
      }
      EXPECT_EQ((*inputs)[rank].valid_tokens, (*wanted)[rank].valid_tokens);
    }
  }
}

}  // namespace
}  // namespace shale
