#include "engine/api/generator.h"

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/api/backend.h"
#include "engine/api/job.h"
#include "engine/api/trainer.h"
#include "engine/files/checkpoint/store.h"
#include "engine/files/io/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace shale {
namespace {

using ::testing::HasSubstr;

constexpr int kGeneratedSequence = 12;
constexpr char kGeneratorText[] = "sphinx of black quartz, judge my vow; pack";
constexpr char kLlama[] = "decoder { family: LLAMA width: 32 layers: 2 heads: 4 kv_heads: 2 }";
constexpr char kGpt2[] = "decoder { family: GPT2 width: 32 layers: 1 heads: 2 }";
constexpr char kMlp[] = "mlp { embedding: 8 hidden: 32 }";

// Owns a run folder. Train() puts a model there that was trained for a few steps on two ranks.
class GeneratorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = JoinPath(::testing::TempDir(), "generator_XXXXXX");
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    run_ = pattern;
    std::string text;
    for (int i = 0; i < 40; ++i) absl::StrAppend(&text, "pack my box with five dozen liquor jugs; ");
    ASSERT_TRUE(WriteFileDurably(JoinPath(run_, "text"), text).ok());
    ASSERT_TRUE(WriteFileDurably(JoinPath(run_, "evaluation"), kGeneratorText).ok());
  }

  void Train(const std::string& model, const std::string& more = "", const std::string& optimizer = "") {
    absl::StatusOr<Job> job =
        ParseJobText(absl::StrCat("model { ", model, " } data { path: \"text\" evaluation_path: \"evaluation\" } ",
                                  "batch { global_batch: 4 micro_batch: 2 sequence_length: ", kGeneratedSequence,
                                  " } sharding { ranks: 2 } ", "optimizer { learning_rate: 1e-2 ", optimizer,
                                  " } lr_schedule { steps: 4 } runtime { threads_per_rank: 1 } ", more),
                     JoinPath(run_, "job"));
    ASSERT_TRUE(job.ok()) << job.status();
    auto trainer = Trainer::Create(*job, {.backend = CreateBackend(*job)->get(),
                                          .checkpoint_folder = RunCheckpointsPath(run_),
                                          .resume = {.from = ResumeFrom::kReplace}});
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    while (!(*trainer)->done()) ASSERT_TRUE((*trainer)->Step().ok());
    const absl::StatusOr<EvaluationReport> evaluation = (*trainer)->Evaluate(100);
    ASSERT_TRUE(evaluation.ok()) << evaluation.status();
    evaluation_ = *evaluation;
    const absl::StatusOr<std::string> saved = (*trainer)->SaveCheckpoint();
    ASSERT_TRUE(saved.ok()) << saved.status();
    checkpoint_ = *saved;
  }

  std::unique_ptr<Generator> Load() {
    auto generator = Generator::FromRun(run_, CreateBackend);
    EXPECT_TRUE(generator.ok()) << generator.status();
    return generator.ok() ? *std::move(generator) : nullptr;
  }

  // Returns the loss of the evaluation text, computed from the logits of each context by itself.
  double LossOfLogits(Generator& generator, bool last_only) {
    const std::vector<int32_t> tokens = *generator.TextPrompt(kGeneratorText);
    double sum = 0;
    int64_t count = 0;
    for (size_t begin = 0; begin + kGeneratedSequence < tokens.size(); begin += kGeneratedSequence) {
      for (int length = last_only ? kGeneratedSequence : 1; length <= kGeneratedSequence; ++length) {
        const auto logits = generator.Logits(absl::MakeConstSpan(tokens).subspan(begin, length));
        EXPECT_TRUE(logits.ok()) << logits.status();
        if (!logits.ok()) return NAN;
        double total = 0;
        for (float logit : *logits) total += std::exp(logit);
        sum += std::log(total) - (*logits)[tokens[begin + length]];
        ++count;
      }
    }
    EXPECT_EQ(count, evaluation_.tokens);
    return sum / static_cast<double>(count);
  }

  std::string run_;
  EvaluationReport evaluation_;
  std::string checkpoint_;
};

// Ties generation to training: this holds only if the loaded weights, the window, the row and the padding are all
// right. The logits are fp32 sums of a few hundred terms of order one: 1e-5 leaves a wide margin, and any mistake is
// far above it.
TEST_F(GeneratorTest, LogitsOfEveryPrefixGiveTheEvaluationLoss) {
  for (const char* model : {kLlama, kGpt2}) {
    Train(model);
    auto generator = Load();
    ASSERT_NE(generator, nullptr);
    EXPECT_NEAR(LossOfLogits(*generator, false), evaluation_.loss, 1e-5) << model;
  }
}

TEST_F(GeneratorTest, AModelOfWholeWindowsGivesTheEvaluationLoss) {
  Train(kMlp);
  auto generator = Load();
  ASSERT_NE(generator, nullptr);
  EXPECT_NEAR(LossOfLogits(*generator, true), evaluation_.loss, 1e-5);
  // Shorter contexts are padded.
  EXPECT_TRUE(generator->Logits({'a'}).ok());
}

// The logits are rounded to bf16 or fp16 on their way out, and the loss is computed from rounded logits too. They
// differ in the order of the sums before the rounding, so that a few of them land one step (2^-8 or 2^-11) apart.
// Logits in fp32 differ by the roundings of the activations alone.
TEST_F(GeneratorTest, NarrowWeightsGiveTheEvaluationLoss) {
  for (const auto& [precision, step] : {std::pair("compute: BF16 master: SPLIT", 0x1p-8),
                                        {"compute: BF16 fp32_logits: true", 0x1p-8},
                                        {"compute: FP16 init_scale: 1024", 0x1p-11},
                                        {"compute: FP16 init_scale: 1024 fp32_logits: true", 0x1p-11}}) {
    SCOPED_TRACE(precision);
    Train(kLlama, absl::StrCat("precision { ", precision, " }"));
    auto generator = Load();
    ASSERT_NE(generator, nullptr);
    EXPECT_NEAR(LossOfLogits(*generator, false), evaluation_.loss, step * evaluation_.loss);
  }
}

TEST_F(GeneratorTest, FrozenWeightsIn4BitsGiveTheEvaluationLoss) {
  Train(kLlama, "", "train_only: [\"blocks.1.*\", \"head.*\"] frozen_weights: NF4");
  auto generator = Load();
  ASSERT_NE(generator, nullptr);
  EXPECT_NEAR(LossOfLogits(*generator, false), evaluation_.loss, 1e-5);
}

TEST_F(GeneratorTest, OnlyTheLastWindowCounts) {
  Train(kLlama);
  auto generator = Load();
  ASSERT_NE(generator, nullptr);
  const std::vector<int32_t> tokens = *generator->TextPrompt(kGeneratorText);
  const auto all = generator->Logits(tokens);
  ASSERT_TRUE(all.ok());
  const std::vector<float> expected(all->begin(), all->end());
  const auto last = generator->Logits(absl::MakeConstSpan(tokens).last(kGeneratedSequence));
  ASSERT_TRUE(last.ok());
  EXPECT_EQ(std::vector<float>(last->begin(), last->end()), expected);
}

TEST_F(GeneratorTest, GenerationRepeatsItselfAndStopsWhenTold) {
  Train(kLlama);
  std::vector<std::vector<int32_t>> runs(2);
  for (std::vector<int32_t>& out : runs) {
    auto generator = Load();
    ASSERT_NE(generator, nullptr);
    ASSERT_TRUE(generator
                    ->Generate({'p'}, 30, {.seed = 5},
                               [&](int32_t token) {
                                 out.push_back(token);
                                 return out.size() < 20;
                               })
                    .ok());
  }
  EXPECT_EQ(runs[0].size(), 20);
  EXPECT_EQ(runs[0], runs[1]);
}

TEST_F(GeneratorTest, PromptsAreChecked) {
  Train(kLlama);
  auto generator = Load();
  ASSERT_NE(generator, nullptr);
  EXPECT_EQ(generator->vocabulary(), 256);
  EXPECT_TRUE(generator->is_text());
  EXPECT_THAT(*generator->TextPrompt(""), ::testing::ElementsAre('\n'));
  EXPECT_THAT(*generator->TextPrompt("a\xc3\xa9"), ::testing::ElementsAre('a', 0xc3, 0xa9));
  EXPECT_EQ(generator->Logits({}).status().message(), "nothing to continue: the prompt has no tokens");
  EXPECT_EQ(generator->Logits({65, 256}).status().message(),
            "token 256 is outside the model's vocabulary of 256 tokens");
  EXPECT_EQ(generator->Logits({-1}).status().message(), "token -1 is outside the model's vocabulary of 256 tokens");
}

TEST_F(GeneratorTest, ARunWithoutAWholeCheckpointIsNamed) {
  const std::string folder = RunCheckpointsPath(run_);
  const auto refusal = [](const std::string& run) {
    return std::string(Generator::FromRun(run, CreateBackend).status().message());
  };
  EXPECT_EQ(refusal(run_), "there is no checkpoint in " + folder + ": " + run_ +
                               " has no job.textproto, so it is no run's; give the folder of a run: runs/NAME, unless "
                               "telemetry.run_folder names another");
  EXPECT_THAT(refusal("nosuch"), HasSubstr("nosuch/checkpoints: there is no folder nosuch; give the folder of a run"));
  ASSERT_TRUE(WriteFileDurably(RunJobPath(run_), "").ok());
  EXPECT_THAT(refusal(run_), HasSubstr("the run has saved none yet; it does at its end"));
  Train(kLlama);
  ASSERT_EQ(truncate(JoinPath(checkpoint_, "MANIFEST").c_str(), 100), 0);
  const std::string message(Generator::FromRun(run_, CreateBackend).status().message());
  EXPECT_THAT(message, HasSubstr("every checkpoint in " + folder + " is damaged"));
  EXPECT_THAT(message, HasSubstr(checkpoint_ + "/MANIFEST: it claims a message of"));
}

TEST_F(GeneratorTest, ADamagedCheckpointIsPassedOverByName) {
  Train(kLlama);
  EXPECT_THAT(Load()->passed_over(), ::testing::IsEmpty());
  const std::string newer = JoinPath(RunCheckpointsPath(run_), "step-0000000009");
  std::filesystem::copy(checkpoint_, newer, std::filesystem::copy_options::recursive);
  ASSERT_EQ(truncate(JoinPath(newer, "MANIFEST").c_str(), 100), 0);
  const std::unique_ptr<Generator> generator = Load();
  ASSERT_NE(generator, nullptr);
  EXPECT_THAT(generator->passed_over(), ::testing::ElementsAre(HasSubstr(newer + "/MANIFEST")));
}

// An error of the machine is not damage of a checkpoint, so the generator does not fall back to an older one.
TEST_F(GeneratorTest, WhatTheMachineLacksIsNoDamage) {
  Train(kLlama);
  const auto refuse = [](const Job&) -> absl::StatusOr<std::unique_ptr<Backend>> {
    return absl::InvalidArgumentError("no such device");
  };
  EXPECT_EQ(Generator::FromRun(run_, refuse).status().message(), "no such device");
}

}  // namespace
}  // namespace shale
