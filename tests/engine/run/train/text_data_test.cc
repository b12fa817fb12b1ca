// Tests that training on text with a tokenizer is training on its tokens, and that masks are the same for any division
// of a step.
#include <filesystem>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/api/job.h"
#include "engine/files/checkpoint/store.h"
#include "engine/run/train/job_data.h"
#include "engine/text/documents/document_reader.h"
#include "engine/text/documents/token_files.h"
#include "engine/text/documents/tokenize_documents.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/run/train/text_data_fixture.h"

namespace shale {
namespace {

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

// Their bytes would train the braces and quotes too, and would not tell what counts.
TEST_F(TextDataTest, JsonLinesWithoutATokenizerAreRefused) {
  std::string rows;
  for (int i = 0; i < 200; ++i) absl::StrAppend(&rows, "{\"text\": \"the quick brown fox ", i, "\"}\n");
  std::filesystem::create_directory(folder_.Path("texts"));
  folder_.Write("texts/rows.jsonl", rows);
  std::filesystem::create_directories(folder_.Path("deep/inside"));
  folder_.Write("deep/inside/rows.jsonl", rows);
  for (const char* path : {"texts/rows.jsonl", "texts", "deep"}) {
    const std::string data = absl::StrCat("path: \"", path, "\"");
    const absl::Status status = Train(SmallJob(data)).status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()),
                ::testing::HasSubstr("rows.jsonl has JSON Lines, which only a tokenizer"));
    EXPECT_TRUE(Train(SmallJob(data + " format: TEXT")).status.ok());
  }
}

// Regression: a folder as it lies on the hub was trained on README.md, LICENSE and dataset_infos.json.
TEST_F(TextDataTest, AFolderOfTheHubGivesItsTrainingSplit) {
  std::filesystem::create_directories(folder_.Path("hub/data"));
  for (const char* name : {"README.md", "LICENSE", "dataset_infos.json", ".gitattributes"}) {
    folder_.Write(absl::StrCat("hub/", name), "{ }\n");
  }
  for (const char* split : {"train", "validation", "test"}) {
    folder_.Write(absl::StrCat("hub/data/", split, "-00000-of-00001.json"),
                  absl::StrCat("[{\"text\": \"the ", split, "\"}]"));
  }
  const Job job = SmallJob("path: \"hub\" tokenizer: \"tokenizer\"");
  const absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Load(folder_.Path("tokenizer"));
  const auto text_of = [&](const Job& of, bool evaluation) -> std::string {
    const absl::StatusOr<TokenSource> tokens =
        OpenJobTokens(of, evaluation ? "data.evaluation_path" : "data.path", of.data.path, {});
    if (!tokens.ok()) return std::string(tokens.status().message());
    std::vector<int32_t> read(tokens->size());
    EXPECT_TRUE(tokens->Read(0, tokens->size(), read.data()).ok());
    return tokenizer->Decode(read, false);
  };
  EXPECT_EQ(text_of(job, false), "the train");
  EXPECT_THAT(text_of(job, true), ::testing::HasSubstr("has the splits validation ("));
  Job together = job;
  together.data.splits = Splits::kTogether;
  EXPECT_EQ(text_of(together, false), "the testthe trainthe validation");
  std::filesystem::remove(folder_.Path("hub/data/test-00000-of-00001.json"));
  EXPECT_EQ(text_of(job, true), "the validation");
  std::filesystem::remove(folder_.Path("hub/data/train-00000-of-00001.json"));
  EXPECT_THAT(text_of(job, false), ::testing::HasSubstr("is of the split validation by its name, and no file of the "
                                                        "split train; name the files"));
  folder_.Write("hub/README.md", "---\nlicense: mit\nconfigs:\n- config_name: default\n---\n");
  EXPECT_THAT(text_of(job, false), ::testing::HasSubstr("README.md says which files are which data (configs)"));
}

// Regression: a run went on with shuffled or reversed data of the same length.
TEST_F(TextDataTest, ARunGoesOnWithTheSameTokensAlone) {
  const auto rows = [](int first, int step) {
    std::string text;
    for (int i = 0; i < 60; ++i)
      absl::StrAppend(&text, "{\"text\": \"the ", (first + i * step) % 60 + 100, " dogs\"}\n");
    return text;
  };
  folder_.Write("a.jsonl", rows(0, 1));
  folder_.Write("b.jsonl", rows(0, 7));
  const auto job = [&](const std::string& path, const std::string& mix) {
    return SmallJob(absl::StrCat("path: \"", path, "\" mix: \"300 ", mix, "\" tokenizer: \"tokenizer\""),
                    {"checkpoint.every_steps=2"});
  };
  const std::vector<double> whole = Losses(Train(job("a.jsonl", "b.jsonl"), "saved"));
  ASSERT_EQ(whole.size(), 4);
  const std::vector<double> rest(whole.begin() + 2, whole.end());
  // The same tokens elsewhere, in other files and in another form.
  std::filesystem::create_directory(folder_.Path("c"));
  folder_.Write("c/1.json", "[{\"text\": \"the 100 dogs\"}]");
  folder_.Write("c/2.ndjson", rows(0, 1).substr(rows(0, 1).find('\n') + 1));
  EXPECT_EQ(Losses(Train(job("c", "b.jsonl"), "", From("saved", 2))), rest);
  for (const auto& [first, step, path] : {std::tuple(0, 13, "data.path"), {59, 59, "data.path"}, {0, 7, ""}}) {
    folder_.Write("d.jsonl", rows(first, step));
    const bool of_mix = path == std::string();
    const absl::Status other =
        Train(of_mix ? job("a.jsonl", "a.jsonl") : job("d.jsonl", "b.jsonl"), "", From("saved", 2)).status;
    EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition) << other;
    EXPECT_THAT(std::string(other.message()), ::testing::HasSubstr(of_mix ? "data.mix[0] is " : "data.path is "));
    EXPECT_THAT(std::string(other.message()), ::testing::HasSubstr(": other tokens, or another order of them; give "));
  }
}

// Regression: a model with the tokenizer.model of SentencePiece alone was trained on bytes.
TEST_F(TextDataTest, TextForAModelWhoseTokenizerIsNotReadIsRefused) {
  folder_.Write("text.txt", std::string(999, 'a'));
  std::filesystem::create_directory(folder_.Path("model"));
  Job job = SmallJob("path: \"text.txt\"");
  job.hf_folder = folder_.Path("model");
  EXPECT_TRUE(OpenJobTokens(job, "data.path", job.data.path, {}).ok());
  folder_.Write("model/tokenizer.model", "pieces");
  const absl::Status status = OpenJobTokens(job, "data.path", job.data.path, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(" has a tokenizer (tokenizer.model "));
  job.data.tokenizer = "bytes";
  EXPECT_TRUE(OpenJobTokens(job, "data.path", job.data.path, {}).ok());
}

// Regression: "cannot open nosuch: No such file or directory" left open which of the paths of a job that was.
TEST_F(TextDataTest, ErrorsBeginWithTheFieldThatTheyAreAbout) {
  folder_.Write("text.txt", std::string(999, 'a'));
  std::filesystem::create_directory(folder_.Path("bad"));
  folder_.Write("bad/tokenizer.json", "{");
  const auto error = [&](const std::string& data, absl::string_view path) {
    Job job = SmallJob(data);
    return std::string(OpenJobTokens(job, "data.mix", folder_.Path(path), {}).status().message());
  };
  const std::string text = "path: \"text.txt\" ";
  EXPECT_THAT(error(text, "nosuch"), ::testing::StartsWith("data.mix: cannot open "));
  EXPECT_THAT(error(text + "tokenizer: \"nosuch\"", "text.txt"), ::testing::StartsWith("data.tokenizer: "));
  EXPECT_THAT(error(text + "tokenizer: \"bad\"", "text.txt"), ::testing::StartsWith("data.tokenizer: "));
  EXPECT_THAT(error(text + "tokenizer: \"bad\"", "nosuch"), ::testing::StartsWith("data.mix: cannot open "));
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

TEST_F(TextDataTest, PackedChatsHaveTheLossThatTheyHaveAlone) {
  WriteTemplate();
  // One step that takes all samples.
  const std::vector<std::string> one_step = {"lr_schedule.steps=", "lr_schedule.epochs=1", "batch.global_batch=64"};
  const auto step_of = [&](const std::string& rows, const std::string& packing) {
    folder_.Write("chats.jsonl", rows);
    std::vector<std::string> all = one_step;
    all.push_back("data.packing=" + packing);
    Run run = Train(SmallJob("path: \"chats.jsonl\" tokenizer: \"tokenizer\"", all));
    EXPECT_EQ(run.steps.size(), 1) << run.status;
    if (run.steps.size() != 1) return StepReport();
    EXPECT_EQ(run.steps[0].step_tokens, run.counted) << "every token that counts is a target once";
    return run.steps[0];
  };
  double sum = 0;
  int64_t counted = 0;
  for (const std::string& chat : Chats()) {
    const StepReport alone = step_of(chat, "PAD");
    sum += alone.loss * static_cast<double>(alone.step_tokens);
    counted += alone.step_tokens;
  }
  for (const char* packing : {"PACK", "PAD"}) {
    const StepReport together = step_of(absl::StrJoin(Chats(), ""), packing);
    EXPECT_EQ(together.step_tokens, counted) << packing;
    // fp32 sums of losses of about 6 in another order.
    EXPECT_NEAR(together.loss, sum / static_cast<double>(counted), 1e-4) << packing;
  }
}

TEST_F(TextDataTest, PackedChatsGoOnFromACheckpointWithTheSameBits) {
  WriteTemplate();
  folder_.Write("chats.jsonl", absl::StrJoin(Chats(), ""));
  const auto job = [&](const std::string& packing, const std::string& loss_on) {
    return SmallJob(
        absl::StrCat("path: \"chats.jsonl\" tokenizer: \"tokenizer\" packing: ", packing, " loss_on: ", loss_on),
        {"checkpoint.every_steps=2"});
  };
  for (const char* packing : {"PACK", "PAD"}) {
    const std::vector<double> whole = Losses(Train(job(packing, "COMPLETIONS"), packing));
    ASSERT_EQ(whole.size(), 4);
    const ResumeOptions from = {.from = ResumeFrom::kPath,
                                .path = absl::StrCat(folder_.Path(packing), "/", CheckpointFolderName(2))};
    EXPECT_EQ(Losses(Train(job(packing, "COMPLETIONS"), "", from)),
              std::vector<double>(whole.begin() + 2, whole.end()));
    const absl::Status other = Train(job(packing, "ALL"), "", from).status;
    EXPECT_NE(other.message().find(absl::StrCat("; ", packing,
                                                ", documents are those of the data, parts without "
                                                "targets that count are left out\", those of this run of ")),
              std::string::npos)
        << other;
  }
}

TEST_F(TextDataTest, LongChatsAreCutOrLeftOutAsTold) {
  WriteTemplate();
  folder_.Write("chats.jsonl", absl::StrJoin(Chats(), ""));
  std::vector<Run> runs;
  for (const char* longer : {"SPLIT", "TRUNCATE", "DROP"}) {
    runs.push_back(
        Train(SmallJob("path: \"chats.jsonl\" tokenizer: \"tokenizer\"",
                       {"lr_schedule.steps=", "lr_schedule.epochs=1", "batch.global_batch=64", "data.packing=PACK",
                        "batch.sequence_length=48", absl::StrCat("data.long_documents=", longer)})));
    ASSERT_EQ(runs.back().steps.size(), 1) << runs.back().status;
    EXPECT_EQ(runs.back().documents.documents, 12);
    EXPECT_GT(runs.back().documents.long_documents, 0);
    EXPECT_LT(runs.back().documents.long_documents, 12);
  }
  // Every chat has an answer, so that each of its documents has a part that counts.
  EXPECT_EQ(runs[0].documents.kept_documents, 12);
  EXPECT_EQ(runs[2].documents.kept_documents, 12 - runs[2].documents.long_documents);
  EXPECT_EQ(runs[0].steps[0].step_tokens, runs[0].counted);
  EXPECT_LT(runs[1].steps[0].step_tokens, runs[0].counted);
  EXPECT_LT(runs[2].steps[0].step_tokens, runs[1].steps[0].step_tokens);
}

TEST_F(TextDataTest, ARunGoesOnWithTheSameTemplateAlone) {
  WriteTemplate();
  folder_.Write("chats.jsonl", absl::StrJoin(Chats(), ""));
  const auto job = [&] {
    return SmallJob("path: \"chats.jsonl\" tokenizer: \"tokenizer\"", {"checkpoint.every_steps=2"});
  };
  ASSERT_TRUE(Train(job(), "saved").status.ok());
  folder_.Write("tokenizer/chat_template.jinja",
                "{% for message in messages %}({{ message.role }}){{ message.content }}</>{% endfor %}"
                "{% if add_generation_prompt %}(assistant){% endif %}");
  const absl::Status other = Train(job(), "", From("saved", 2)).status;
  EXPECT_NE(other.message().find(", chat template "), std::string::npos) << other;
}

TEST_F(TextDataTest, MixturesAreTheSameOnEveryNumberOfRanksAndGoOnWithTheSameBits) {
  WriteTemplate();
  folder_.Write("chats.jsonl", absl::StrJoin(Chats(), ""));
  std::string text;
  for (int i = 0; i < 60; ++i) absl::StrAppend(&text, "{\"text\": \"the ", i, " lazy dogs\"}\n");
  folder_.Write("other.jsonl", text);
  const auto job = [&](const std::string& share, std::vector<std::string> overrides = {}) {
    overrides.push_back("checkpoint.every_steps=2");
    const std::string mix = share.empty() ? "" : absl::StrCat(" mix: \"", share, " other.jsonl\"");
    return SmallJob("path: \"chats.jsonl\" tokenizer: \"tokenizer\" packing: PACK" + mix, overrides);
  };
  const std::vector<double> whole = Losses(Train(job("400"), "mixed"));
  ASSERT_EQ(whole.size(), 4);
  EXPECT_NE(whole, Losses(job("")));
  const std::vector<double> divided = Losses(job("400", {"sharding.ranks=3", "batch.micro_batch=1"}));
  ASSERT_EQ(divided.size(), 4);
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(divided[i], whole[i], 1e-4) << i;

  const ResumeOptions from = From("mixed", 2);
  EXPECT_EQ(Losses(Train(job("400"), "", from)), std::vector<double>(whole.begin() + 2, whole.end()));
  const absl::Status other = Train(job("401"), "", from).status;
  EXPECT_NE(other.message().find("; mix of 600 from "), std::string::npos) << other;
  EXPECT_NE(other.message().find("; mix of 599 from "), std::string::npos) << other;
}

TEST_F(TextDataTest, JobsNameTheTokenizer) {
  folder_.Write("rows", "{\"text\": \"a\"}\n");
  const auto error = [&](const std::string& data) {
    return std::string(ParseSmallJob(data, "mlp { embedding: 4 hidden: 8 layers: 1 }").status().message());
  };
  EXPECT_NE(error("path: \"rows\" format: JSONL").find("data.format: JSONL needs a tokenizer; give the folder of a"),
            std::string::npos);
  EXPECT_NE(error("path: \"rows\" bad_bytes: REPLACE").find("data.bad_bytes: without a tokenizer the tokens are the"),
            std::string::npos);
  EXPECT_NE(error("splits: TOGETHER").find("data.splits: only files of data.path have it"), std::string::npos);
  EXPECT_NE(error("tokenizer: \"tokenizer\"").find("data.tokenizer: only files of data.path have it"),
            std::string::npos);
  folder_.Write("long", "{\"text\": \"" + std::string(99, 'q') + " the quick brown fox jumps over the lazy dog\"}\n");
  const absl::Status small =
      Train(SmallJob("path: \"long\" format: JSONL tokenizer: \"tokenizer\"", {"model.decoder.vocabulary=300"})).status;
  EXPECT_NE(small.message().find(" does not fit a vocabulary of 300; the model needs at least "), std::string::npos)
      << small;
  // The records of runs name it, too.
  const Job job = SmallJob(
      "path: \"rows\" format: JSONL tokenizer: \"tokenizer\" loss_on: ALL bad_lines: SKIP "
      "bad_bytes: REPLACE splits: TOGETHER");
  EXPECT_EQ(job.data.tokenizer, std::filesystem::path(folder_.Path("tokenizer")).lexically_normal());
  const absl::StatusOr<Job> again = ParseRecordedJob(ResolvedJobText(job), "job");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->data, job.data);
}

}  // namespace
}  // namespace shale
