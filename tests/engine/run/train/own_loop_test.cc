// Laws of a program's own loop: what it changes between steps takes effect in the next one, and a run resumes after it.
#include <fstream>
#include <limits>

#include "engine/api/events.h"
#include "gmock/gmock.h"
#include "tests/engine/run/train/own_data.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

class OwnLoopTest : public OwnDataTest {
 protected:
  std::unique_ptr<Trainer> MustCreate(const Job& job, DataSource* data, const std::string& folder = "",
                                      const ResumeOptions& resume = {}) {
    auto trainer = Create(job, data, folder, resume);
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    return trainer.ok() ? *std::move(trainer) : nullptr;
  }
  // Runs a step and returns its report.
  static StepReport MustStep(Trainer& trainer) {
    absl::StatusOr<StepReport> report = trainer.Step();
    EXPECT_TRUE(report.ok()) << report.status();
    return report.ok() ? *std::move(report) : StepReport();
  }
  static std::vector<double> Losses(Trainer& trainer, int steps) {
    std::vector<double> losses;
    for (int i = 0; i < steps; ++i) losses.push_back(MustStep(trainer).loss);
    return losses;
  }

  MadeUpData data_{Describe(false)};
};

TEST_F(OwnLoopTest, ALearningRateHoldsFromTheNextStepOnUntilTheScheduleTakesOver) {
  const Job constant = MakeJob({"lr_schedule={shape: CONSTANT warmup_steps: 0}", "optimizer.learning_rate=0.02"});
  auto expected = MustCreate(constant, &data_), scheduled = MustCreate(MakeJob({}), &data_);
  auto trainer = MustCreate(MakeJob({}), &data_);
  ASSERT_TRUE(expected && scheduled && trainer);
  ASSERT_TRUE(trainer->SetLearningRate(0.02).ok());
  for (int i = 0; i < 3; ++i) {
    const StepReport own = MustStep(*trainer), of_job = MustStep(*expected);
    EXPECT_EQ(own.learning_rate, 0.02);
    EXPECT_EQ(own.loss, of_job.loss);
    MustStep(*scheduled);
  }
  ASSERT_TRUE(trainer->SetLearningRate(0).ok());
  EXPECT_EQ(MustStep(*trainer).learning_rate, 0);
  MustStep(*scheduled);
  ASSERT_TRUE(trainer->SetLearningRate(std::nullopt).ok());
  EXPECT_EQ(MustStep(*trainer).learning_rate, MustStep(*scheduled).learning_rate);
}

TEST_F(OwnLoopTest, AResumedRunGoesOnWithTheSchedule) {
  auto trainer = MustCreate(MakeJob({}), &data_, "run"), scheduled = MustCreate(MakeJob({}), &data_);
  ASSERT_TRUE(trainer && scheduled);
  ASSERT_TRUE(trainer->SetLearningRate(0.5).ok());
  MustStep(*trainer);
  MustStep(*scheduled);
  ASSERT_TRUE(trainer->SaveCheckpoint().ok());
  auto resumed = MustCreate(MakeJob({}), &data_, "", From("run", 1));
  ASSERT_NE(resumed, nullptr);
  EXPECT_EQ(MustStep(*resumed).learning_rate, MustStep(*scheduled).learning_rate);
}

TEST_F(OwnLoopTest, RatesThatCannotBeAreRefused) {
  auto trainer = MustCreate(MakeJob({}), &data_);
  ASSERT_NE(trainer, nullptr);
  for (const double rate : {-1e-9, 1001.0, std::numeric_limits<double>::quiet_NaN()}) {
    const absl::Status status = trainer->SetLearningRate(rate);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("allowed: 0 to 1000"));
  }
}

// Samples of another kind of numbers than those of data_.
absl::Status Shift(int64_t number, PulledSample& sample) {
  sample = MakeSample(number + 500, false);
  return absl::OkStatus();
}

DataDescription Described(const std::string& name, int64_t samples) {
  DataDescription description = Describe(false);
  description.name = name;
  description.samples = samples;
  return description;
}

TEST_F(OwnLoopTest, OtherDataBeginsAtItsFirstSampleForEveryNumberOfRanks) {
  // The first three steps take samples 0 to 20 of the first data.
  MadeUpData both(Describe(false), [](int64_t number, PulledSample& sample) {
    return number < 21 ? absl::OkStatus() : Shift(number - 21, sample);
  });
  MadeUpData other(Described("other", 50), Shift);
  for (const char* ranks : {"sharding.ranks=1", "sharding.ranks=3"}) {
    const Job job = MakeJob({ranks, "data.order=SEQUENTIAL", "lr_schedule.steps=4"});
    auto expected = MustCreate(job, &both), trainer = MustCreate(job, &data_);
    ASSERT_TRUE(expected && trainer);
    const std::vector<double> losses = Losses(*expected, 4);
    std::vector<double> own = Losses(*trainer, 3);
    const absl::Status set = trainer->SetData(&other);
    ASSERT_TRUE(set.ok()) << set;
    own.push_back(MustStep(*trainer).loss);
    EXPECT_EQ(own, losses) << ranks;
  }
}

TEST_F(OwnLoopTest, ARunResumesFromACheckpointInOtherDataWithTheSameBits) {
  for (const bool pulled : {false, true}) {
    Iterator iterator, again;
    MadeUpData by_number(Described("other", 50), Shift);
    PullSource other(Described("other", kEndlessSamples), iterator.Callbacks());
    PullSource other_again(Described("other", kEndlessSamples), again.Callbacks());
    const Job job = MakeJob({"data.order=SEQUENTIAL", "sharding.ranks=2"});
    const std::string folder = absl::StrCat("run", pulled);
    auto trainer = MustCreate(job, &data_, folder);
    ASSERT_NE(trainer, nullptr);
    Losses(*trainer, 2);
    ASSERT_TRUE(trainer->SetData(pulled ? static_cast<DataSource*>(&other) : &by_number).ok());
    Losses(*trainer, 2);
    const absl::StatusOr<std::string> saved = trainer->SaveCheckpoint();
    ASSERT_TRUE(saved.ok()) << saved.status();
    const std::vector<double> rest = Losses(*trainer, 2);
    auto resumed = MustCreate(job, pulled ? static_cast<DataSource*>(&other_again) : &by_number, "", From(folder, 4));
    ASSERT_NE(resumed, nullptr);
    EXPECT_EQ(Losses(*resumed, 2), rest) << pulled;
    const absl::Status refused = Create(job, &data_, "", From(folder, 4)).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("its tokens are of \"other\", those of this run of \"made up\""));
  }
}

TEST_F(OwnLoopTest, AShuffledSourceIsTakenInTheOrderOfItsFirstEpoch) {
  std::vector<int64_t> read;
  const auto note = [&](int64_t number, PulledSample&) {
    read.push_back(number);
    return absl::OkStatus();
  };
  MadeUpData first(Described("noted", 50), note), second(Described("noted", 50), note);
  const Job job = MakeJob({"lr_schedule.steps=3"});
  auto fresh = MustCreate(job, &first);
  ASSERT_NE(fresh, nullptr);
  Losses(*fresh, 3);
  const std::vector<int64_t> expected(read.begin(), read.begin() + 14);
  auto trainer = MustCreate(job, &data_);
  ASSERT_NE(trainer, nullptr);
  Losses(*trainer, 1);
  read.clear();
  ASSERT_TRUE(trainer->SetData(&second).ok());
  Losses(*trainer, 2);
  EXPECT_EQ(read, expected);
}

TEST_F(OwnLoopTest, AnIteratorThatComesBackGoesOnBehindWhatWasReadAhead) {
  Iterator iterator;
  PullSource pulled(Described("pulled", kEndlessSamples), iterator.Callbacks());
  auto trainer = MustCreate(MakeJob({"data.order=SEQUENTIAL"}), &pulled, "run");
  ASSERT_NE(trainer, nullptr);
  Losses(*trainer, 1);
  ASSERT_TRUE(trainer->SetData(&data_).ok());
  Losses(*trainer, 1);
  EXPECT_EQ(iterator.next, 14);  // One step, and one that was read ahead and dropped.
  ASSERT_TRUE(trainer->SetData(&pulled).ok());
  Losses(*trainer, 1);
  ASSERT_TRUE(trainer->SaveCheckpoint().ok());
  Iterator again;
  PullSource resumed(Described("pulled", kEndlessSamples), again.Callbacks());
  ASSERT_NE(MustCreate(MakeJob({"data.order=SEQUENTIAL"}), &resumed, "", From("run", 3)), nullptr);
  EXPECT_EQ(again.next, 21);
}

TEST_F(OwnLoopTest, DataThatDoesNotFitIsRefusedAndTheRunGoesOnWithItsOwn) {
  auto expected = MustCreate(MakeJob({}), &data_), trainer = MustCreate(MakeJob({}), &data_, "run");
  ASSERT_TRUE(expected && trainer);
  const std::vector<double> losses = Losses(*expected, 3);
  EXPECT_EQ(MustStep(*trainer).loss, losses[0]);
  const auto refusal = [&](DataSource* data) {
    const absl::Status status = trainer->SetData(data);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  MadeUpData weighted(Describe(true)), none(Described("none", 0));
  EXPECT_THAT(refusal(&weighted), HasSubstr("its targets have weights, and data.target_weights is NONE"));
  EXPECT_THAT(refusal(&none), HasSubstr("data \"none\": it has 0 samples"));
  EXPECT_THAT(refusal(nullptr), HasSubstr("SetData was given no data"));
  Iterator iterator;
  PullCallbacks callbacks = iterator.Callbacks();
  PullSource pulled(Describe(false), callbacks);
  EXPECT_THAT(refusal(&pulled), HasSubstr("it can only be read in order, so it cannot be shuffled"));
  callbacks.save = nullptr;
  PullSource unsaved(Describe(false), callbacks);
  EXPECT_THAT(refusal(&unsaved), HasSubstr("callbacks save and restore are missing, which checkpoints need"));
  EXPECT_EQ(Losses(*trainer, 2), std::vector<double>(losses.begin() + 1, losses.end()));
}

TEST_F(OwnLoopTest, ARunThatCouldNotResumeKeepsItsData) {
  std::string text;
  for (int i = 0; i < 12; ++i) absl::StrAppend(&text, "the ", i * i % 97, " quick brown foxes jump.\n");
  std::ofstream(Path("text")) << text;
  const auto refusal = [&](const Job& job, DataSource* data) {
    auto trainer = MustCreate(job, data);
    if (trainer == nullptr) return absl::OkStatus();
    return trainer->SetData(&data_);
  };
  const absl::Status files = refusal(MakeJob({"data.path=" + Path("text")}), nullptr);
  EXPECT_EQ(files.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(files.message()), HasSubstr("this run reads the files of data.path"));
  const absl::Status epochs = refusal(MakeJob({"lr_schedule.steps=", "lr_schedule.epochs=1"}), &data_);
  EXPECT_EQ(epochs.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(epochs.message()), HasSubstr("give lr_schedule.steps to change the data"));
}

TEST_F(OwnLoopTest, MetricsAreInTheReportOfTheNextStep) {
  auto trainer = MustCreate(MakeJob({}), &data_);
  ASSERT_NE(trainer, nullptr);
  ASSERT_TRUE(trainer->AddMetric("reward", 1).ok());
  ASSERT_TRUE(trainer->AddMetric("kl/mean", -0.5).ok());
  ASSERT_TRUE(trainer->AddMetric("reward", 2).ok());
  const StepReport report = MustStep(*trainer);
  ASSERT_EQ(report.metrics.size(), 2);
  EXPECT_EQ(report.metrics[0].name, "kl/mean");
  EXPECT_EQ(report.metrics[0].value, -0.5);
  EXPECT_EQ(report.metrics[1].name, "reward");
  EXPECT_EQ(report.metrics[1].value, 2);
  EXPECT_TRUE(MustStep(*trainer).metrics.empty());
}

TEST_F(OwnLoopTest, MetricsThatNoSinkCouldTakeAreRefused) {
  auto trainer = MustCreate(MakeJob({}), &data_);
  ASSERT_NE(trainer, nullptr);
  for (const std::string& name :
       {std::string(), std::string("Reward"), std::string("a b"), std::string("a\"b"), std::string(101, 'a')}) {
    const absl::Status status = trainer->AddMetric(name, 1);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("allowed: 1 to 100 of the characters a-z 0-9 _ . / -"));
  }
  EXPECT_EQ(trainer->AddMetric("reward", std::numeric_limits<double>::infinity()).message(),
            "metric reward is inf; wanted a finite number");
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(trainer->AddMetric(absl::StrCat("m", i), i).ok());
  EXPECT_TRUE(trainer->AddMetric("m7", 0).ok());
  const absl::Status status = trainer->AddMetric("m64", 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(), "metric m64 is one too many: a report has at most 64 of them");
  EXPECT_EQ(MustStep(*trainer).metrics.size(), 64);
}

}  // namespace
}  // namespace shale
