// Tests that training on text with a tokenizer is training on its tokens, and that masks are the same for any division
// of a step.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/backends/job_backend.h"
#include "engine/config/parse.h"
#include "engine/config/print.h"
#include "engine/tokenize/document_reader.h"
#include "engine/tokenize/token_files.h"
#include "engine/tokenize/tokenize_documents.h"
#include "engine/tokenize/tokenizer.h"
#include "engine/train/trainer.h"
#include "tests/engine/io/temp_folder.h"

namespace shale {
namespace {

class TextDataTest : public testing::Test {
 protected:
  TextDataTest() {
    std::filesystem::create_directory(folder_.Path("tokenizer"));
    std::filesystem::copy_file("tests/engine/tokenize/golden/gpt2/tokenizer.json",
                               folder_.Path("tokenizer/tokenizer.json"));
  }

  absl::StatusOr<Job> ParseSmallJob(const std::string& data, const std::string& model,
                                    const std::vector<std::string>& overrides = {}) {
    return ParseJobText(absl::StrCat("model { ", model, R"( }
      batch { global_batch: 6 micro_batch: 2 sequence_length: 24 }
      sharding { ranks: 2 }
      optimizer { learning_rate: 1e-2 }
      lr_schedule { steps: 4 }
      runtime { threads_per_rank: 1 }
      telemetry { run_folder: "run" }
      data { )",
                                     data, " }\n"),
                        folder_.Path("job.textproto"), overrides);
  }
  Job SmallJob(const std::string& data, const std::vector<std::string>& overrides = {}) {
    absl::StatusOr<Job> job =
        ParseSmallJob(data, "decoder { family: LLAMA width: 32 layers: 1 heads: 4 hidden: 48 }", overrides);
    EXPECT_TRUE(job.ok()) << job.status();
    job->data.cache = folder_.Path("tokens");
    return *std::move(job);
  }
  std::vector<double> Losses(const Job& job) {
    const std::unique_ptr<Backend> backend = *CreateBackend(job);
    absl::StatusOr<std::unique_ptr<Trainer>> trainer = Trainer::Create(job, {.backend = backend.get()});
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    std::vector<double> losses;
    while (trainer.ok() && !(*trainer)->done()) {
      const absl::StatusOr<StepReport> report = (*trainer)->Step();
      EXPECT_TRUE(report.ok()) << report.status();
      if (!report.ok()) break;
      losses.push_back(report->loss);
    }
    return losses;
  }

  TempFolder folder_;
};

TEST_F(TextDataTest, TextTrainsAsItsTokensDo) {
  std::string text;
  for (int i = 0; i < 300; ++i) absl::StrAppend(&text, "the ", i % 7, " quick brown foxes jump over the lazy dog.\n");
  folder_.Write("text.txt", text);
  const Job job = SmallJob("path: \"text.txt\" tokenizer: \"tokenizer\"");

  const absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Load(folder_.Path("tokenizer"));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  absl::StatusOr<DocumentReader> reader = DocumentReader::Open(folder_.Path("text.txt"), {});
  ASSERT_TRUE(reader.ok()) << reader.status();
  absl::StatusOr<TokenFilesWriter> writer = TokenFilesWriter::Create(folder_.Path("made"), tokenizer->vocabulary());
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(TokenizeDocuments(*tokenizer, *reader, {}, [&](const DocumentTokens& document) {
                return writer->Add(document.tokens);
              }).ok());
  ASSERT_TRUE(writer->Commit().ok());
  const Job of_tokens =
      SmallJob("path: \"made\"", {absl::StrCat("model.decoder.vocabulary=", tokenizer->vocabulary())});
  const std::vector<double> losses = Losses(job);
  ASSERT_EQ(losses.size(), 4);
  EXPECT_EQ(losses, Losses(of_tokens));
  EXPECT_EQ(losses, Losses(job)) << "tokens from the cache";
}

TEST_F(TextDataTest, MasksDoNotDependOnTheDivisionOfAStep) {
  std::string rows;
  for (int i = 0; i < 200; ++i) {
    absl::StrAppend(&rows, "{\"prompt\": \"the ", std::string(i % 11, 'x'), " \", \"completion\": \"answer ", i % 5,
                    "\"}\n");
  }
  folder_.Write("rows.jsonl", rows);
  const std::string data = "path: \"rows.jsonl\" tokenizer: \"tokenizer\"";
  const std::vector<double> losses = Losses(SmallJob(data));
  for (const std::vector<std::string>& division : {std::vector<std::string>{"sharding.ranks=1", "batch.micro_batch=6"},
                                                   {"sharding.ranks=3", "batch.micro_batch=1"}}) {
    const std::vector<double> others = Losses(SmallJob(data, division));
    ASSERT_EQ(others.size(), losses.size());
    // Sums in another order, in fp32, of losses of about 6.
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(others[i], losses[i], 1e-4) << i;
  }
  std::vector<std::string> all = {"data.loss_on=ALL"};
  EXPECT_NE(Losses(SmallJob(data, all)), losses);
}

TEST_F(TextDataTest, JobsNameTheTokenizer) {
  folder_.Write("rows", "{\"text\": \"a\"}\n");
  const auto error = [&](const std::string& data) {
    return std::string(ParseSmallJob(data, "mlp { embedding: 4 hidden: 8 layers: 1 }").status().message());
  };
  EXPECT_NE(error("path: \"rows\" format: JSONL").find("data.format: JSONL needs a tokenizer; give the folder of a"),
            std::string::npos);
  EXPECT_NE(error("tokenizer: \"tokenizer\"").find("data.tokenizer: only files of data.path have it"),
            std::string::npos);
  // The records of runs name it, too.
  const Job job = SmallJob("path: \"rows\" format: JSONL tokenizer: \"tokenizer\" loss_on: ALL bad_lines: SKIP");
  EXPECT_EQ(job.data.tokenizer, std::filesystem::path(folder_.Path("tokenizer")).lexically_normal());
  const absl::StatusOr<Job> again = ParseRecordedJob(ResolvedJobText(job), "job");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->data, job.data);
}

}  // namespace
}  // namespace shale
