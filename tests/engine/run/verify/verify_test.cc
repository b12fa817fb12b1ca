// Verify finds nothing wrong with jobs of every kind, and leaves nothing behind.
#include "engine/api/verify.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/api/data_source.h"
#include "kernels/ops/embedding.h"
#include "tests/engine/files/io/temp_folder.h"
#include "tests/engine/run/train/own_data.h"
#include "tests/engine/run/verify/verify_jobs.h"
#include "tests/engine/run/verify/wrong_backend.h"
#include "tools/examples/diffusion_mlp.h"
#include "tools/examples/masked_encoder.h"
#include "tools/examples/table_classifier.h"
#include "tools/examples/universal_transformer.h"

namespace shale::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// Returns the report of a job, whose checks must all hold.
VerifyReport ExpectHolds(const Job& job, VerifyOptions options = {}) {
  const absl::StatusOr<std::unique_ptr<Backend>> backend = CreateBackend(job);
  EXPECT_TRUE(backend.ok()) << backend.status();
  options.backend = backend->get();
  const VerifyReport report = MustVerify(job, options);
  EXPECT_GE(report.rows.size(), 13);
  EXPECT_TRUE(report.holds()) << report.Text();
  return report;
}

VerifyOutcome OutcomeOf(const VerifyReport& report, absl::string_view check) {
  for (const VerifyRow& row : report.rows) {
    if (row.check == check) return row.outcome;
  }
  ADD_FAILURE() << "no row " << check << " in\n" << report.Text();
  return VerifyOutcome::kFails;
}

class Verify : public ::testing::Test {
 protected:
  Job OnText(absl::string_view model, std::vector<std::string> overrides) {
    std::string text;
    for (int i = 0; i < 60; ++i) absl::StrAppend(&text, "the ", i * i % 97, " quick brown foxes jump over the dog.\n");
    overrides.push_back(absl::StrCat("data.path=", folder_.Write("text", text)));
    return MakeJob(model, overrides);
  }
  TempFolder folder_;
};

// The job is verified as it is written. One that left fields to a search was once refused.
TEST_F(Verify, ADecoderOnText) {
  const VerifyReport report = ExpectHolds(
      OnText(kDecoder, {"sharding.ranks=2", "data.evaluation_fraction=0.2", "checkpoint.every_steps=50",
                        "activation_checkpointing={preset: BLOCK segment_blocks: 2}", "runtime.search=[\"*\"]"}));
  std::vector<std::string> checks;
  for (const VerifyRow& row : report.rows) checks.push_back(row.check);
  EXPECT_THAT(checks,
              ElementsAre("data", "4 micro-batches", "2 ranks", "recompute CHEAP", "recompute ATTENTION",
                          "recompute FFN", "recompute SUBLAYERS", "recompute BLOCK", "recompute BLOCK, segments of 2",
                          "save and resume", "evaluation", "masked targets", "gradients in fp32", "measured peak"));
  EXPECT_THAT(report.shrunk, IsEmpty());
  EXPECT_THAT(report.Text(), HasSubstr("all checks hold: 14 hold, 0 fail, 0 not run"));
}

TEST_F(Verify, OneRankInBf16) {
  ExpectHolds(OnText(kDecoder, {"precision={compute: BF16 master: SPLIT}", "sharding.accumulation=LAYERED"}));
}

// Also with a scale with which the first steps of the job overflow.
TEST_F(Verify, Fp16) {
  ExpectHolds(OnText(kDecoder, {"precision.compute=FP16", "sharding.ranks=2"}));
  ExpectHolds(OnText(kDecoder, {"precision={compute: FP16 init_scale: 1e9}"}));
}

TEST_F(Verify, TheSettingsOfTheJobAreSavedAndResumed) {
  ExpectHolds(OnText(kDecoder, {"sharding={ranks: 4 shard_ranks: 2}", "precision.compute=BF16", "optimizer.state=LEAN",
                                "precision.gradient_shards=BF16"}));
  ExpectHolds(OnText(kDecoder, {"sharding.ranks=2", "optimizer={rule: LION update: IN_BACKWARD clipping: PER_UNIT}",
                                "optimizer.learning_rate=1e-3", "optimizer.non_finite=SKIP", "batch.micro_batch=1"}));
}

// The frozen parameters have no gradients to compare, and are saved and restored with the others.
TEST_F(Verify, FrozenParameters) {
  ExpectHolds(OnText(kDecoder, {"sharding.ranks=2", "optimizer.train_only=[blocks.1.*, *norm*]"}));
  ExpectHolds(OnText(kDecoder, {"sharding.ranks=2", "model.adapter.rank=2"}));
}

TEST_F(Verify, AnMlpOnManyRanks) {
  const VerifyReport report =
      ExpectHolds(OnText("model { mlp { embedding: 4 hidden: 12 init_std: 0.3 } }", {"sharding.ranks=64"}));
  EXPECT_THAT(report.shrunk, ElementsAre("sharding.ranks is 4 instead of 64"));
}

TEST_F(Verify, PackedAndPaddedDocuments) {
  for (const char* packing : {"PACK", "PAD"}) {
    ExpectHolds(OnText(kDecoder, {absl::StrCat("data.packing=", packing), "data.document_end_token=10",
                                  "sharding.ranks=2", "batch.sequence_length=24"}));
  }
}

TEST_F(Verify, ACustomModelWithSharedParameters) {
  ExpectHolds(OnText("", {"sharding.ranks=3"}),
              {.model = examples::UniversalTransformer({.width = 16, .heads = 2, .hidden = 24, .steps = 2})});
}

TEST_F(Verify, FeaturesAndClassesOfAProgram) {
  examples::Table table = {.cells = 8, .classes = 3};
  for (int i = 0; i < 500 * 8; ++i) table.features.push_back(static_cast<float>(i * 7919 % 1009) / 504 - 1);
  for (int row = 0; row < 500; ++row) table.labels.push_back(row * 31 % 3);
  examples::TableRows rows("rows", table);
  ExpectHolds(MakeJob("", {"batch.sequence_length=1", "sharding.ranks=2"}),
              {.model = examples::TableClassifier({.blocks = 1}), .data = &rows});
}

TEST_F(Verify, ValuesWithAndWithoutWeights) {
  for (const bool weighted : {false, true}) {
    examples::NoisyPoints points(3, 10, weighted);
    std::vector<std::string> overrides = {"data.order=SEQUENTIAL", "sharding.ranks=2"};
    if (weighted) overrides.push_back("data.target_weights=OVER_WEIGHTS");
    const VerifyReport report = ExpectHolds(
        MakeJob("", overrides), {.model = examples::DiffusionMlp({.width = 12, .hidden = 16}), .data = &points});
    EXPECT_EQ(OutcomeOf(report, weighted ? "target weights" : "masked targets"),
              weighted ? VerifyOutcome::kHolds : VerifyOutcome::kNotRun);
  }
}

TEST_F(Verify, MaskedTokensInBothDirections) {
  examples::Sentences sentences = {.length = 10, .words = 7};
  for (int i = 0; i < 400; ++i) sentences.tokens.push_back(i * i % 97 % 7);
  examples::MaskedSentences masked("squares", sentences, /*seed=*/3);
  const VerifyReport report =
      ExpectHolds(MakeJob("", {"data.order=SEQUENTIAL", "data.target_weights=OVER_WEIGHTS", "sharding.ranks=2"}),
                  {.model = examples::MaskedEncoder({.width = 12, .hidden = 16, .blocks = 1}), .data = &masked});
  EXPECT_EQ(OutcomeOf(report, "target weights"), VerifyOutcome::kHolds);
}

TEST_F(Verify, WeightsOfBothSigns) {
  for (const char* kind : {"OVER_TOKENS", "OVER_WEIGHTS"}) {
    MadeUpData data(Describe(/*weighted=*/true));
    ExpectHolds(MakeJob(kDecoder, {absl::StrCat("data.target_weights=", kind), "sharding.ranks=2"}), {.data = &data});
  }
}

TEST_F(Verify, ASourceThatCanOnlyBeReadInOrder) {
  Iterator iterator;
  PullSource data(Describe(/*weighted=*/false), iterator.Callbacks());
  const VerifyReport report = ExpectHolds(MakeJob(kDecoder, {"data.order=SEQUENTIAL"}), {.data = &data});
  EXPECT_EQ(OutcomeOf(report, "data"), VerifyOutcome::kNotRun);
}

TEST_F(Verify, ShrinksAStepThatTakesTooLong) {
  const VerifyReport report = ExpectHolds(
      OnText(kDecoder, {"batch.micro_batch=4", "batch.global_batch=8", "batch.sequence_length=40"}), {.seconds = 1e-6});
  EXPECT_THAT(report.shrunk,
              ElementsAre("batch.micro_batch is 1 instead of 4", "batch.sequence_length is 16 instead of 40"));
  EXPECT_THAT(report.Text(), HasSubstr("time was too short for the others"));
}

TEST_F(Verify, ShrinksAStepThatTakesTooMuchMemory) {
  Job job = OnText(kDecoder, {"batch.micro_batch=64", "batch.global_batch=64", "memory.budget_bytes=700000"});
  const VerifyReport report = ExpectHolds(job);
  EXPECT_THAT(report.shrunk, ElementsAre(StartsWith("batch.micro_batch is ")));
}

TEST_F(Verify, LeavesNothingBehindAndTellsOfEachRow) {
  const Job job = OnText(kDecoder, {});
  const TempFolder folder;
  std::vector<std::string> told;
  const auto backend = CreateBackend(job);
  const absl::StatusOr<VerifyReport> report =
      shale::Verify(job, {.backend = backend->get(),
                          .seconds = 1e-6,
                          .temporary_folder = folder.path(),
                          .on_row = [&](const VerifyRow& row) { told.push_back(row.check); }});
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(told.size(), report->rows.size());
  EXPECT_EQ(folder.CountEntries(), 0);
  EXPECT_FALSE(std::filesystem::exists("never written"));
}

// A backend that counts micro-batches, and cancels at one of them.
class CancellingBackend {
 public:
  explicit CancellingBackend(int64_t cancel_at) : cancel_at_(cancel_at) {}
  const Backend* get() const { return &backend_; }
  const std::atomic<bool>* cancelled() const { return &cancelled_; }
  int64_t micro_batches() const { return micro_batches_; }

 private:
  const int64_t cancel_at_;
  std::atomic<bool> cancelled_ = false;
  std::atomic<int64_t> micro_batches_ = 0;
  const WrongBackend backend_{[this](Op& op) {
    if (op.Is<EmbeddingForward>() && ++micro_batches_ == cancel_at_) cancelled_ = true;
  }};
};

TEST_F(Verify, EndsBeforeTheNextStepWhenItIsCancelled) {
  const Job job = MakeJob("model { mlp { embedding: 4 hidden: 12 init_std: 0.3 } }", {"runtime.ops=REFERENCE"});
  MadeUpData data(Describe(/*weighted=*/false));
  const TempFolder folder;
  std::vector<VerifyRow> told;
  const auto verify = [&](const CancellingBackend& backend) {
    told.clear();
    return shale::Verify(job, {.backend = backend.get(),
                               .data = &data,
                               .seconds = 1e-6,
                               .temporary_folder = folder.path(),
                               .on_row = [&](const VerifyRow& row) { told.push_back(row); },
                               .cancelled = backend.cancelled()});
  };
  const CancellingBackend never(/*cancel_at=*/0);
  const absl::StatusOr<VerifyReport> report = verify(never);
  ASSERT_TRUE(report.ok()) << report.status();
  const size_t rows = told.size();
  const int64_t last = never.micro_batches();
  for (const int64_t at : {int64_t{1}, last / 3, last * 2 / 3, last}) {
    const CancellingBackend backend(at);
    const absl::Status status = verify(backend).status();
    EXPECT_TRUE(absl::IsCancelled(status)) << "at " << at << ": " << status;
    // A small step has two micro-batches.
    EXPECT_LE(backend.micro_batches(), at + 1);
    EXPECT_LT(told.size(), rows);
    EXPECT_TRUE(std::none_of(told.begin(), told.end(),
                             [](const VerifyRow& row) { return row.outcome == VerifyOutcome::kFails; }))
        << "at " << at;
    EXPECT_EQ(folder.CountEntries(), 0);
  }
  // A call that is cancelled before it begins reads no data, and one that a row cancels has no further row.
  const std::atomic<bool> before = true;
  MadeUpData unread(Describe(/*weighted=*/false), [](int64_t, PulledSample&) {
    ADD_FAILURE() << "read";
    return absl::OkStatus();
  });
  EXPECT_TRUE(
      absl::IsCancelled(shale::Verify(job, {.backend = never.get(), .data = &unread, .cancelled = &before}).status()));
  std::atomic<bool> by_row = false;
  int64_t count = 0;
  EXPECT_TRUE(absl::IsCancelled(shale::Verify(job, {.backend = never.get(),
                                                    .data = &data,
                                                    .seconds = 1e-6,
                                                    .on_row = [&](const VerifyRow&) { by_row = ++count == 3; },
                                                    .cancelled = &by_row})
                                    .status()));
  EXPECT_EQ(count, 3);
}

TEST_F(Verify, ABadJobIsAnError) {
  const Job job = OnText(kDecoder, {});
  const auto backend = CreateBackend(job);
  const auto message = [&](const Job& bad, VerifyOptions options) {
    options.temporary_folder = folder_.path();
    return std::string(shale::Verify(bad, options).status().message());
  };
  EXPECT_EQ(message(job, {}), "VerifyOptions.backend is missing");
  Job bad = job;
  bad.data.path = "nowhere";
  EXPECT_THAT(message(bad, {.backend = backend->get()}), HasSubstr("nowhere"));
  bad.data.path.clear();
  EXPECT_THAT(message(bad, {.backend = backend->get()}), HasSubstr("data.path: missing"));
  bad = job;
  bad.memory.budget_bytes = 1000;
  EXPECT_THAT(message(bad, {.backend = backend->get()}), HasSubstr("budget"));
}

}  // namespace
}  // namespace shale::testing
