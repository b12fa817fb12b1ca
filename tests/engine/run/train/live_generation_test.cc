// Laws of generation from the weights that are being trained (runtime.generate): it gives what a generator gives on a
// checkpoint of the same state, in the memory that was planned, and changes nothing of the training.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "absl/strings/str_join.h"
#include "engine/api/generator.h"
#include "gmock/gmock.h"
#include "tests/engine/run/train/own_data.h"
#include "tests/engine/run/train/resume_fixture.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

// Contexts shorter than a window, as long as one, and longer.
constexpr int kLengths[] = {1, 4, 10, 17};

class LiveGenerationTest : public OwnDataTest {
 protected:
  static std::vector<int32_t> Context(int length) {
    std::vector<int32_t> context;
    for (int i = 0; i < length; ++i) context.push_back(i * i % static_cast<int>(kIds));
    return context;
  }

  MadeUpData data_{Describe(false)};
};

TEST_F(LiveGenerationTest, ItsLogitsAreThoseOfAGeneratorOnACheckpoint) {
  int number = 0;
  for (const std::vector<std::string>& overrides :
       std::vector<std::vector<std::string>>{{},
                                             {"sharding.ranks=2"},
                                             {"sharding.ranks=3", "sharding.accumulation=LAYERED"},
                                             {"sharding={ranks: 4 shard_ranks: 2 strategy: ZERO2}"},
                                             {"sharding={ranks: 2 strategy: DDP}", "batch.micro_batch=2"},
                                             {"precision.compute=BF16"},
                                             {"precision.compute=BF16", "sharding.ranks=2"},
                                             {"precision={compute: BF16 master: SPLIT}", "sharding.ranks=2"},
                                             {"precision.compute=BF16", "optimizer.state=LEAN", "sharding.ranks=2"}}) {
    SCOPED_TRACE(absl::StrJoin(overrides, " "));
    std::vector<std::string> all = {"runtime.generate=true"};
    all.insert(all.end(), overrides.begin(), overrides.end());
    const std::string folder = absl::StrCat("run", ++number);
    const auto trainer = Create(MakeJob(all), &data_, folder);
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    for (int i = 0; i < 2; ++i) ASSERT_TRUE((*trainer)->Step().ok());
    const absl::StatusOr<std::string> saved = (*trainer)->SaveCheckpoint();
    ASSERT_TRUE(saved.ok()) << saved.status();
    const absl::StatusOr<CheckpointReader> checkpoint = CheckpointReader::Open(*saved);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto generator = Generator::Create(*checkpoint, CreateBackend);
    ASSERT_TRUE(generator.ok()) << generator.status();
    for (const int length : kLengths) {
      const auto live = (*trainer)->generator().Logits(Context(length)), loaded = (*generator)->Logits(Context(length));
      ASSERT_TRUE(live.ok()) << live.status();
      ASSERT_TRUE(loaded.ok()) << loaded.status();
      ASSERT_EQ(live->size(), kIds);
      EXPECT_EQ(std::vector<float>(live->begin(), live->end()), std::vector<float>(loaded->begin(), loaded->end()));
    }
    std::vector<int32_t> live, loaded;
    const SamplingOptions sampling = {.temperature = 1, .top_k = 0, .seed = 7};
    const auto into = [](std::vector<int32_t>& tokens) {
      return [&tokens](int32_t token) {
        tokens.push_back(token);
        return tokens.size() < 12;
      };
    };
    ASSERT_TRUE((*trainer)->generator().Generate(Context(3), 20, sampling, into(live)).ok());
    ASSERT_TRUE((*generator)->Generate(Context(3), 20, sampling, into(loaded)).ok());
    EXPECT_EQ(live.size(), 12);
    EXPECT_EQ(live, loaded);
  }
}

TEST_F(LiveGenerationTest, ItChangesNothingOfTheTrainingAndStaysInTheArenaThatWasPlanned) {
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {"sharding.ranks=2"},
           {"sharding.ranks=3", "precision={compute: BF16 master: SPLIT}", "memory.keep_gradients=true"},
           {"checkpoint.asynchronous=true", "sharding={ranks: 2 strategy: ZERO1}"}}) {
    SCOPED_TRACE(absl::StrJoin(overrides, " "));
    std::vector<std::string> with = overrides;
    with.push_back("runtime.generate=true");
    const auto plain = Create(MakeJob(overrides), &data_, "plain"),
               generating = Create(MakeJob(with), &data_, "generating");
    ASSERT_TRUE(plain.ok()) << plain.status();
    ASSERT_TRUE(generating.ok()) << generating.status();
    const JobPlan& plan = (*generating)->plan();
    ASSERT_FALSE(plan.generate.empty());
    EXPECT_EQ(plan.arena_bytes,
              std::max({plan.train.memory.peak_bytes, plan.evaluate.memory.peak_bytes, plan.generate_peak_bytes()}));
    std::vector<double> losses;
    const absl::Status run = (*plain)->Run({.on_step = [&](const StepReport& report) {
      losses.push_back(report.loss);
      return absl::OkStatus();
    }});
    ASSERT_TRUE(run.ok()) << run;
    std::vector<double> own;
    // With checkpoint.asynchronous a save of step 3 may be under way while the callback generates.
    const absl::Status generated = (*generating)->Run({.on_step = [&](const StepReport& report) {
      own.push_back(report.loss);
      EXPECT_EQ(report.peak_bytes_measured, plan.arena_bytes);
      return (*generating)->generator().Logits(Context(5)).status();
    }});
    ASSERT_TRUE(generated.ok()) << generated;
    EXPECT_EQ(own, losses);
    std::filesystem::remove_all(Path("plain"));
    std::filesystem::remove_all(Path("generating"));
  }
}

TEST_F(LiveGenerationTest, WhatCannotBeGeneratedIsRefusedAndTheRunGoesOn) {
  const auto without = Create(MakeJob({}), &data_);
  ASSERT_TRUE(without.ok()) << without.status();
  const absl::Status unplanned = (*without)->generator().Logits({1}).status();
  EXPECT_EQ(unplanned.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(unplanned.message(), "the job plans no generation: set runtime.generate");
  const auto trainer = Create(MakeJob({"runtime.generate=true"}), &data_);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_EQ((*trainer)->generator().Logits({}).status().message(), "nothing to continue: the prompt has no tokens");
  const auto ignore = [](int32_t) { return true; };
  EXPECT_EQ((*trainer)->generator().Generate({1, 29}, 3, {}, ignore).message(),
            "token 29 is outside the model's vocabulary of 29 tokens");
  EXPECT_TRUE((*trainer)->Step().ok());
}

// Weights that diverged give no tokens, and no failure of the ranks either.
TEST_F(LiveGenerationTest, LogitsThatAreNotFiniteEndGenerationAlone) {
  const auto trainer = Create(MakeJob({"runtime.generate=true", "optimizer.non_finite=SKIP"}), &data_);
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  std::vector<float> value(12), read(12);
  ASSERT_TRUE((*trainer)->state().ReadParameter("final_norm.weight", absl::MakeSpan(value)).ok());
  ASSERT_TRUE((*trainer)->state().WriteParameter("final_norm.weight", 3, {std::nanf("")}).ok());
  const absl::Status status = (*trainer)->generator().Generate({1}, 1, {}, [](int32_t) { return true; });
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("its weights are damaged, or training diverged"));
  ASSERT_TRUE((*trainer)->state().WriteParameter("final_norm.weight", value).ok());
  EXPECT_TRUE((*trainer)->generator().Generate({1}, 1, {}, [](int32_t) { return true; }).ok());
  const absl::StatusOr<StepReport> report = (*trainer)->Step();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE(report->updated);
}

}  // namespace
}  // namespace shale
