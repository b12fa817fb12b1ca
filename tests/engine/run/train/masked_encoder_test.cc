// Tests a run whose model reads its tokens in both directions, and whose targets count only where a token is masked,
// with the example of an encoder: it learns what a causal model cannot, it stops and resumes with the same bits, and it
// generates nothing.
#include "tools/examples/masked_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/plan/planner/summary.h"
#include "engine/shale.h"
#include "tests/engine/run/train/resume_fixture.h"

namespace shale {
namespace {

using examples::MaskedSentences;
using examples::Sentences;
using ::testing::HasSubstr;

constexpr int64_t kLength = 12, kWords = 9;

// Returns sentences in which every word comes three times in a row, so that a masked one can be told from the others.
Sentences Triples() {
  Sentences sentences = {.length = kLength, .words = kWords};
  uint32_t random = 1;
  for (int i = 0; i < 200 * kLength / 3; ++i) {
    random = random * 1664525 + 1013904223;
    sentences.tokens.insert(sentences.tokens.end(), 3, static_cast<int32_t>((random >> 16) % kWords));
  }
  return sentences;
}

CustomModel Encoder() { return examples::MaskedEncoder({.width = 14, .heads = 2, .hidden = 22, .blocks = 2}); }

// Sentences whose tokens that are not masked have other targets.
class OtherTargets : public DataSource {
 public:
  explicit OtherTargets(MaskedSentences& sentences) : DataSource(sentences.description()), sentences_(sentences) {}
  absl::Status Read(int64_t sample, const SampleParts& out) override {
    const absl::Status status = sentences_.Read(sample, out);
    for (int64_t i = 0; i < kLength; ++i) {
      if (out.weights[i] == 0) out.targets[i] = (out.targets[i] + 1) % kWords;
    }
    return status;
  }

 private:
  MaskedSentences& sentences_;
};

class MaskedEncoderTest : public ResumeTest {
 protected:
  MaskedEncoderTest() { data_ = &sentences_; }
  Job MakeJob(const CustomModel& model, const std::vector<std::string>& overrides = {}) const {
    return MakeCustomJob(model, R"(
data { order: SEQUENTIAL target_weights: OVER_WEIGHTS }
batch { global_batch: 7 micro_batch: 1 sequence_length: 12 }
sharding { ranks: 3 }
optimizer { learning_rate: 1e-2 }
checkpoint { every_steps: 3 keep_last: 9 }
runtime { threads_per_rank: 1 }
lr_schedule { steps: 6 }
)",
                         overrides);
  }

  MaskedSentences sentences_{"triples", Triples(), /*seed=*/1};
};

TEST_F(MaskedEncoderTest, LearnsWhatOnlyTheTokensBehindTell) {
  MaskedSentences others("triples", Triples(), /*seed=*/77777);
  evaluation_data_ = &others;
  const Run run = Train(MakeJob(examples::MaskedEncoder({}),
                                {"batch={global_batch: 32 micro_batch: 16 sequence_length: 12}", "sharding.ranks=1",
                                 "optimizer.learning_rate=5e-3", "lr_schedule.steps=300", "checkpoint.every_steps=0",
                                 "telemetry={evaluate_every: 300 evaluation_sequences: 64}"}),
                        "learns");
  ASSERT_TRUE(run.status.ok()) << run.status;
  ASSERT_EQ(run.evaluations.size(), 1);
  // A model that sees only the tokens before guesses the first of three words.
  const double guess = std::log(static_cast<double>(kWords));
  EXPECT_GT(run.losses.at(1), 0.9 * guess);
  EXPECT_LT(run.evaluations.at(300), guess / 6);
}

TEST_F(MaskedEncoderTest, StoppingAndResumingChangesNoBit) {
  ExpectThatStoppingChangesNoBit(MakeJob(Encoder(), {"precision.compute=BF16"}));
}

TEST_F(MaskedEncoderTest, TheTargetsOfTokensThatAreNotMaskedDoNotCount) {
  const Job job = MakeJob(Encoder());
  const Run run = Train(job, "one");
  ASSERT_EQ(run.losses.size(), 6) << run.status;
  OtherTargets others(sentences_);
  data_ = &others;
  EXPECT_EQ(Train(job, "other").losses, run.losses);
}

TEST_F(MaskedEncoderTest, ItsFlopsAreThoseOfAttentionInBothDirections) {
  const Job job = MakeJob(Encoder());
  const auto trainer = Trainer::Create(job, {.backend = CreateBackend(job)->get(), .data = data_});
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  // C width, F inner width, V vocabulary, S length. For each block 4 C C + 2 C F weights, each used three times in a
  // multiply-add, and attention over S S pairs of positions; then the head.
  constexpr double C = 14, F = 22, V = kWords + 1, S = kLength;
  const double block = 6 * (4 * C * C + 2 * C * F) + 3 * 4 * C * S;
  EXPECT_DOUBLE_EQ(ModelFlopsPerToken((*trainer)->job(), (*trainer)->plan().train.graph), 2 * block + 6 * C * V);
}

TEST_F(MaskedEncoderTest, DocumentsCannotBePacked) {
  const absl::Status status = Train(MakeJob(Encoder(), {"data.packing=PACK"}), "packed").status;
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("a model with bidirectional attention cannot train on packed or padded documents"));
}

TEST_F(MaskedEncoderTest, NothingCanBeGenerated) {
  constexpr char kWhy[] =
      "a model with bidirectional attention cannot generate tokens: its attention reads the tokens after a position, "
      "which do not exist yet when the next one is drawn";
  const absl::Status live = Train(MakeJob(Encoder(), {"runtime.generate=true"}), "live").status;
  EXPECT_EQ(live.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(live.message(), absl::StrCat("runtime.generate: custom model masked_encoder: ", kWhy));
  ASSERT_TRUE(Train(MakeJob(Encoder()), "run/checkpoints").status.ok());
  const absl::Status loaded = Generator::FromRun(Path("run"), CreateBackend, Encoder()).status();
  EXPECT_EQ(loaded.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(loaded.message()), HasSubstr(kWhy));
}

}  // namespace
}  // namespace shale
