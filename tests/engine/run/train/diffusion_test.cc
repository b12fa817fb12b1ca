// Tests a run whose data and model are continuous (features in, values out, no vocabulary), with the example of a
// diffusion model: it learns, any division of the work trains the same, and it resumes with the same bits.
//
// W ranks, K micro-batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/shale.h"
#include "tests/engine/run/train/resume_fixture.h"
#include "tools/examples/diffusion_mlp.h"

namespace shale {
namespace {

using examples::NoisyPoints;
using ::testing::HasSubstr;

constexpr int64_t kPoints = 5;  // Positions of a sample.

class DiffusionTest : public ResumeTest {
 protected:
  DiffusionTest() {
    data_ = &points_;
    evaluation_data_ = &others_;
  }
  // Returns a job whose global batch of 7 samples is K = 7, 4 and 3 micro-batches of one, two and three ranks.
  Job MakeJob(const std::vector<std::string>& overrides = {}) const {
    return MakeCustomJob(examples::DiffusionMlp({.width = 15, .hidden = 22, .groups = 3, .blocks = 2}), R"(
data { order: SEQUENTIAL }
batch { global_batch: 7 micro_batch: 1 sequence_length: 5 }
sharding { ranks: 2 }
optimizer { learning_rate: 1e-2 epsilon: 1e-3 }
checkpoint { every_steps: 3 keep_last: 9 }
telemetry { evaluate_every: 2 evaluation_sequences: 5 }
runtime { threads_per_rank: 1 }
lr_schedule { steps: 6 }
)",
                         overrides);
  }

  NoisyPoints points_{1, kPoints}, others_{2, kPoints};
};

TEST_F(DiffusionTest, LearnsToPredictTheNoise) {
  NoisyPoints points(1, 16), others(2, 16);
  data_ = &points;
  evaluation_data_ = &others;
  const Run run =
      Train(MakeJob({"batch={global_batch: 32 micro_batch: 8 sequence_length: 16}", "lr_schedule.steps=200",
                     "telemetry={evaluate_every: 200 evaluation_sequences: 64}", "checkpoint.every_steps=0"}),
            "learns");
  ASSERT_TRUE(run.status.ok()) << run.status;
  ASSERT_EQ(run.evaluations.size(), 1);
  // Predicting zero costs 1, the variance of the noise.
  EXPECT_GT(run.losses.at(1), 0.9);
  EXPECT_LT(run.losses.at(200), 0.5);
  EXPECT_LT(run.evaluations.at(200), 0.5);
}

TEST_F(DiffusionTest, StoppingAndResumingChangesNoBit) {
  ExpectThatStoppingChangesNoBit(MakeJob({"sharding.ranks=3"}));
}

TEST_F(DiffusionTest, StoppingAndResumingChangesNoBitInBf16WithWeights) {
  NoisyPoints points(1, kPoints, /*weighted=*/true), others(2, kPoints, /*weighted=*/true);
  data_ = &points;
  evaluation_data_ = &others;
  ExpectThatStoppingChangesNoBit(
      MakeJob({"precision.compute=BF16", "data.target_weights=OVER_WEIGHTS", "activation_checkpointing.preset=BLOCK"}));
}

TEST_F(DiffusionTest, EveryNumberOfRanksTrainsTheSameWithAndWithoutWeights) {
  for (const char* weights : {"NONE", "OVER_TOKENS", "OVER_WEIGHTS"}) {
    const std::string setting = absl::StrCat("data.target_weights=", weights);
    const bool weighted = setting != "data.target_weights=NONE";
    NoisyPoints points(1, kPoints, weighted), others(2, kPoints, weighted);
    data_ = &points;
    evaluation_data_ = &others;
    const Run one = Train(MakeJob({setting, "sharding.ranks=1", "batch.micro_batch=7"}), absl::StrCat(weights, "one"));
    ASSERT_EQ(one.losses.size(), 6) << one.status;
    for (const char* ranks : {"sharding.ranks=1", "sharding.ranks=2", "sharding.ranks=3"}) {
      // K = 7, 4 and 3, and then 3, 2 and 1.
      for (const char* micro_batch : {"batch.micro_batch=1", "batch.micro_batch=3"}) {
        const std::string what = absl::StrCat(weights, ranks, micro_batch);
        const Run several = Train(MakeJob({setting, ranks, micro_batch}), what);
        ASSERT_EQ(several.losses.size(), 6) << several.status;
        EXPECT_EQ(several.tokens, one.tokens) << what;
        // Sums of some hundred terms in another order, through six steps.
        for (const auto& [step, loss] : several.losses) EXPECT_NEAR(loss, one.losses.at(step), 1e-4) << what;
        for (const auto& [step, loss] : several.evaluations) EXPECT_NEAR(loss, one.evaluations.at(step), 1e-4) << what;
      }
    }
  }
}

TEST_F(DiffusionTest, TheLossIsTheWeightedMeanOfTheSquares) {
  NoisyPoints points(1, kPoints, /*weighted=*/true);
  double squares = 0, total = 0;
  for (int64_t sample = 0; sample < 7; ++sample) {
    std::vector<float> features(kPoints * NoisyPoints::kFeatures), noise(kPoints * NoisyPoints::kValues),
        weights(kPoints);
    const SampleParts parts = {.features = absl::MakeSpan(features),
                               .target_values = absl::MakeSpan(noise),
                               .weights = absl::MakeSpan(weights)};
    ASSERT_TRUE(points.Read(sample, parts).ok());
    for (int64_t i = 0; i < kPoints; ++i) {
      squares += weights[i] * (std::pow(noise[2 * i], 2) + std::pow(noise[2 * i + 1], 2)) / 2;
      total += weights[i];
    }
  }
  EXPECT_LT(total, 0.95 * 7 * kPoints);
  for (const bool over_weights : {false, true}) {
    const Job job = MakeJob({absl::StrCat("data.target_weights=", over_weights ? "OVER_WEIGHTS" : "OVER_TOKENS"),
                             "telemetry.evaluate_every=0", "checkpoint.every_steps=0"});
    auto trainer = Trainer::Create(job, {.backend = CreateBackend(job)->get(), .data = &points});
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    // A model whose last layer is 0 predicts 0.
    ASSERT_TRUE((*trainer)->state().WriteParameter("noise.out.weight", std::vector<float>(2 * 15)).ok());
    const absl::StatusOr<StepReport> report = (*trainer)->Step();
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_NEAR(report->loss, squares / (over_weights ? total : 7 * kPoints), 1e-5);
    EXPECT_EQ(report->peak_bytes_measured, report->peak_bytes_planned);
  }
}

TEST_F(DiffusionTest, HasAPlanWithoutDataAndWithoutAVocabulary) {
  const Job job = MakeJob();
  const absl::StatusOr<DataFacts> facts = DataFactsForPlanning(job);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->vocabulary, 0);
  const auto backend = CreateBackend(job);
  const absl::StatusOr<ResolvedJob> resolved = ResolveJob(job, *facts, (*backend)->machine());
  ASSERT_TRUE(resolved.ok()) << resolved.status();
  EXPECT_THAT(PlanText(resolved->job, resolved->plan),
              HasSubstr("custom model diffusion_mlp (width=15 hidden=22 groups=3 blocks=2), 2 blocks\n"));
  const auto trainer = Trainer::Create(job, {.backend = backend->get(), .data = data_, .evaluation_data = data_});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  EXPECT_EQ((*trainer)->plan().arena_bytes, resolved->plan.arena_bytes);
}

TEST_F(DiffusionTest, WhatIsMissingIsSaid) {
  ASSERT_TRUE(Train(MakeJob(), "run/checkpoints").status.ok());
  const CustomModel model = examples::DiffusionMlp({.width = 15, .hidden = 22, .groups = 3, .blocks = 2});
  EXPECT_THAT(std::string(Generator::FromRun(Path("run"), CreateBackend, model).status().message()),
              HasSubstr("a model with a mean squared error has no logits to generate from"));
  // A model of tokens, with data that has no vocabulary.
  Job job = MakeJob();
  std::get<CustomModel>(job.model).build = [](const GraphOptions& options) {
    GraphBuilder b(options);
    b.BeginUnit("only");
    const GroupId group = b.AddGroup("only");
    b.EndUnit(Embedding(b, b.AddParameter(group, "table", {options.vocabulary, 4}, {}), std::nullopt));
    return b.Finish();
  };
  EXPECT_THAT(std::string(Train(job, "tokens").status.message()),
              HasSubstr("parameter table has the shape [0, 4]; dimensions must be at least 1, and their product below "
                        "2^57. The vocabulary is 0, because neither the model nor its data has one"));
}

TEST_F(DiffusionTest, NothingCanBeGeneratedFromAModelOfFeatures) {
  const Run run = Train(MakeJob({"runtime.generate=true"}), "run");
  EXPECT_EQ(run.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      run.status.message(),
      "runtime.generate: the model reads features, and only a model that reads tokens can generate; leave it out");
}

}  // namespace
}  // namespace shale
