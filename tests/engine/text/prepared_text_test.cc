#include "engine/text/documents/prepared_text.h"

#include <sys/resource.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/api/data_source.h"
#include "engine/files/data/sample_sources.h"
#include "engine/files/io/folder_lock.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/io/temp_folder.h"

namespace shale {
namespace {

constexpr char kGpt2[] = "tests/engine/text/golden/gpt2";

void Write(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

class PreparedTextTest : public ::testing::Test {
 protected:
  PreparedTextTest() : cache_(folder_.path() + "/tokens"), text_{.path = folder_.path() + "/a.jsonl"} {
    text_.tokenizer = TokenizerFolder("gpt2");
    Write(text_.path, "{\"prompt\": \"a b\", \"completion\": \" c d\"}\n{\"text\": \"e\"}\n");
  }

  // Returns a folder with the tokenizer.json of a golden. Tests see their data through links, which lead out of it.
  std::string TokenizerFolder(const std::string& family) {
    const std::string to = absl::StrCat(folder_.path(), "/", family);
    std::filesystem::create_directory(to);
    std::filesystem::copy_file(absl::StrCat("tests/engine/text/golden/", family, "/tokenizer.json"),
                               to + "/tokenizer.json");
    return to;
  }
  absl::StatusOr<PreparedText> Prepare() { return PrepareText(text_, {.cache = cache_}); }
  std::string Error() { return std::string(Prepare().status().message()); }
  // Returns the names in the cache, but for empty folders that were locks of several, and for errors.
  std::vector<std::string> Kept() {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(cache_)) {
      if (!std::filesystem::is_empty(entry.path()) && entry.path().extension() != ".error") {
        names.push_back(entry.path().filename());
      }
    }
    return names;
  }

  TempFolder folder_;
  std::string cache_;
  TextData text_;
};

std::string Read(const TokenSource& source) {
  std::vector<int32_t> tokens(source.size());
  EXPECT_TRUE(source.Read(0, source.size(), tokens.data()).ok());
  return Tokenizer::Load(kGpt2)->Decode(tokens, false);
}

TEST_F(PreparedTextTest, TokensAreMadeOnceAndMaskTargets) {
  const absl::StatusOr<PreparedText> made = Prepare();
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(made->report.made);
  EXPECT_EQ(Read(made->tokens), "a b c de");
  EXPECT_EQ(made->tokens.vocabulary(), 700);
  EXPECT_THAT(made->tokens.tokenizer(), ::testing::StartsWith("tokenizer.json "));
  const absl::StatusOr<PreparedText> found = Prepare();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->report.made);
  EXPECT_EQ(found->report.totals.counted, made->report.totals.counted);
  EXPECT_EQ(Read(found->tokens), Read(made->tokens));

  // The tokens of a sample and their targets: what follows a prompt counts, the prompt does not.
  const int64_t length = made->tokens.size() - 1;
  TokenSamples samples(found->tokens, length);
  std::vector<int32_t> inputs(length), targets(length);
  ASSERT_TRUE(samples.Read(0, {.inputs = absl::MakeSpan(inputs), .targets = absl::MakeSpan(targets)}).ok());
  std::vector<int32_t> counted;
  for (int64_t i = 0; i < length; ++i) {
    if (targets[i] == kMaskedTarget) continue;
    counted.push_back(targets[i]);
    if (i + 1 < length) {
      EXPECT_EQ(targets[i], inputs[i + 1]);
    }
  }
  EXPECT_EQ(Tokenizer::Load(kGpt2)->Decode(counted, false), " c de");
  EXPECT_EQ(std::ssize(counted), found->report.totals.counted);
}

TEST_F(PreparedTextTest, MasksDoNotDependOnWhereReadsBegin) {
  std::string rows;
  for (int i = 0; i < 400; ++i) {
    rows += absl::StrCat("{\"prompt\": \"", std::string(i % 13, 'q'), " \", \"completion\": \"", i, "\"}\n");
  }
  Write(text_.path, rows);
  const absl::StatusOr<PreparedText> prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  const int64_t size = prepared->tokens.size();
  std::vector<int32_t> whole(size), parts(size);
  ASSERT_TRUE(prepared->tokens.MaskTargets(0, size, whole.data()).ok());
  for (const int64_t step : {1, 7, 64}) {
    std::fill(parts.begin(), parts.end(), 0);
    for (int64_t at = 0; at < size; at += step) {
      ASSERT_TRUE(prepared->tokens.Slice(at, size).MaskTargets(0, std::min(step, size - at), parts.data() + at).ok());
    }
    EXPECT_EQ(parts, whole) << step;
  }
  EXPECT_EQ(std::count(whole.begin(), whole.end(), 0), prepared->report.totals.counted);
}

TEST_F(PreparedTextTest, WhatDecidesTokensDecidesTheirPlace) {
  ASSERT_TRUE(Prepare().ok());
  text_.loss_on = LossOn::kAll;
  ASSERT_TRUE(Prepare().ok());
  text_.tokenizer = TokenizerFolder("llama3");
  ASSERT_TRUE(Prepare().ok());
  EXPECT_EQ(Kept().size(), 3);
  const std::string other = folder_.path() + "/b.jsonl";
  std::filesystem::copy(text_.path, other);
  text_.path = other;
  ASSERT_TRUE(Prepare().ok());
  EXPECT_EQ(Kept().size(), 3) << "the same bytes elsewhere";
  Write(text_.path, "{\"text\": \"f\"}\n");
  ASSERT_TRUE(Prepare().ok());
  EXPECT_EQ(Kept().size(), 4);
}

TEST_F(PreparedTextTest, DocumentsEndWithTheTokenOfTheFolder) {
  const std::string& tokenizer = text_.tokenizer;
  Write(tokenizer + "/tokenizer_config.json", "{\"eos_token\": {\"content\": \"<|endoftext|>\"}}");
  const absl::StatusOr<PreparedText> prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(Read(prepared->tokens), "a b c d<|endoftext|>e<|endoftext|>");
  EXPECT_THAT(prepared->tokens.tokenizer(), ::testing::MatchesRegex("tokenizer.json [0-9a-f]+, end of documents 0"));
  Write(tokenizer + "/tokenizer_config.json", "{\"eos_token\": 5}");
  EXPECT_EQ(Error(), tokenizer +
                         "/tokenizer_config.json: eos_token: found 5; wanted a token: a string, or an object "
                         "with \"__type\": \"AddedToken\" and \"content\"");
  Write(tokenizer + "/tokenizer_config.json", "[]");
  EXPECT_EQ(Error(), tokenizer + "/tokenizer_config.json: it is not an object between { and }");
}

// The end was once read from tokenizer_config.json alone, so that with GPT-2's folder documents ended in nothing.
TEST_F(PreparedTextTest, DocumentsEndWhereverTheEndIsNamed) {
  const std::string& tokenizer = text_.tokenizer;
  const auto end = [&] {
    const absl::StatusOr<PreparedText> prepared = Prepare();
    return prepared.ok() ? std::string(Read(prepared->tokens)).substr(7) : std::string(prepared.status().message());
  };
  EXPECT_EQ(end(), "e");
  Write(tokenizer + "/config.json", "{\"eos_token_id\": [1, 2]}");
  EXPECT_EQ(end(), "!e!") << "the first of the model's";
  Write(tokenizer + "/generation_config.json", "{\"eos_token_id\": 2}");
  EXPECT_EQ(end(), "\"e\"");
  Write(tokenizer + "/special_tokens_map.json", "{\"eos_token\": {\"content\": \"#\"}}");
  EXPECT_EQ(end(), "#e#");
  Write(tokenizer + "/special_tokens_map.json", "{}");
  Write(tokenizer + "/tokenizer_config.json", "{\"model_max_length\": 1024}");
  Write(tokenizer + "/config.json", "{\"model_type\": \"gpt2\", \"eos_token_id\": 1}");
  EXPECT_EQ(end(), "<|endoftext|>e<|endoftext|>") << "GPT2Tokenizer's own";
  Write(tokenizer + "/config.json", "{\"eos_token_id\": 1}");
  Write(tokenizer + "/generation_config.json", "{\"eos_token_id\": 700}");
  EXPECT_EQ(end(), tokenizer +
                       "/generation_config.json: eos_token_id: found 700, which is no token of tokenizer.json, "
                       "whose largest is 699");
}

TEST_F(PreparedTextTest, TheChatTemplateIsPartOfTheTokenizer) {
  const std::string chat = text_.tokenizer + "/chat_template.jinja";
  const std::string rest = "{% for m in messages %}{{ m.content }}{% endfor %}";
  EXPECT_THAT(Prepare()->tokens.tokenizer(), ::testing::Not(::testing::HasSubstr("chat template")));
  Write(chat, rest);
  Write(text_.path, "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}\n{\"text\": \"b\"}\n");
  const absl::StatusOr<PreparedText> first = Prepare();
  ASSERT_TRUE(first.ok()) << first.status();
  Write(chat, "-" + rest);
  const std::string pattern = "tokenizer.json [0-9a-f]+, chat template [0-9a-f]+";
  EXPECT_THAT(first->tokens.tokenizer(), ::testing::MatchesRegex(pattern));
  EXPECT_THAT(Prepare()->tokens.tokenizer(), ::testing::MatchesRegex(pattern));
  EXPECT_NE(Prepare()->tokens.tokenizer(), first->tokens.tokenizer());
  // Special tokens belong to it if it reads them, or if tokenizer_config.json names them: checkpoints record so.
  Write(chat, rest);
  Write(text_.tokenizer + "/config.json", "{\"model_type\": \"qwen3\"}");
  Write(text_.tokenizer + "/tokenizer_config.json", "{\"tokenizer_class\": \"GPT2Tokenizer\", \"eos_token\": null}");
  EXPECT_EQ(Prepare()->tokens.tokenizer(), first->tokens.tokenizer());
  Write(chat, "{{ bos_token }}" + rest);
  const std::string reads = Prepare()->tokens.tokenizer();
  Write(text_.tokenizer + "/special_tokens_map.json", "{\"bos_token\": \"!\"}");
  EXPECT_NE(Prepare()->tokens.tokenizer(), reads);
}

TEST_F(PreparedTextTest, WhatIsSaidOfRowsIsKeptWithTheTokens) {
  Write(text_.tokenizer + "/chat_template.jinja", "{{ strftime_now('%Y') }}{{ messages[0].content }}");
  Write(text_.path,
        "{\"messages\": [{\"role\": \"assistant\", \"content\": \"<|endoftext|>\"}, {\"role\": \"user\", \"content\": "
        "\"c\"}], \"id\": 1}\n");
  EXPECT_THAT(Error(), ::testing::HasSubstr("set data.date"));
  text_.date = "2026-03-05";
  EXPECT_THAT(Error(), ::testing::HasSubstr(":1: message 1: \"content\": the template leaves it out: \"c\""));
  text_.allow_dropped_text = true;
  text_.loss_on = LossOn::kAll;
  ASSERT_TRUE(Prepare().ok()) << Error();
  const absl::StatusOr<PreparedText> found = Prepare();
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_FALSE(found->report.made);
  const TokenizeTotals& totals = found->report.totals;
  EXPECT_EQ(totals.dropped, 1);
  EXPECT_THAT(totals.first_dropped, ::testing::HasSubstr("leaves it out"));
  EXPECT_EQ(totals.spelled, 1);
  EXPECT_THAT(totals.first_spelled, ::testing::EndsWith(":1: \"<|endoftext|>\""));
  EXPECT_THAT(totals.ignored, ::testing::ElementsAre("id"));
  EXPECT_EQ(Read(found->tokens), "2026<|endoftext|>");
  text_.date = "2027-03-05";
  EXPECT_EQ(Read(Prepare()->tokens), "2027<|endoftext|>");
}

TEST_F(PreparedTextTest, DocumentsAreKnownAndPacked) {
  const std::string rows = "{\"prompt\": \"a b\", \"completion\": \" c d\"}\n{\"text\": \"\"}\n{\"text\": \"e f\"}\n";
  // The first part of the last row has no target that counts.
  Write(text_.path, rows + "{\"prompt\": \"p q r s t u v\", \"completion\": \" w\"}\n");
  const absl::StatusOr<PreparedText> prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->tokens.document_begin_token(), -1) << "that of the format of its files";
  EXPECT_TRUE(prepared->tokens.knows_documents());
  const absl::StatusOr<std::vector<int64_t>> begins = prepared->tokens.DocumentBegins();
  ASSERT_TRUE(begins.ok()) << begins.status();
  ASSERT_EQ(begins->size(), 2);
  std::vector<std::string> documents;
  int64_t last = 0;
  for (const int64_t end : {(*begins)[0], (*begins)[1], prepared->tokens.size()}) {
    documents.push_back(Read(prepared->tokens.Slice(last, end)));
    last = end;
  }
  EXPECT_THAT(documents, ::testing::ElementsAre("a b c d", "e f", "p q r s t u v w"));

  constexpr int64_t kLength = 4;
  for (const Packing packing : {Packing::kPack, Packing::kPad}) {
    const auto samples = DocumentSamples::Create(prepared->tokens, packing, {}, kLength);
    ASSERT_TRUE(samples.ok()) << samples.status();
    std::string counted;
    for (int64_t i = 0; i < (*samples)->description().samples; ++i) {
      std::vector<int32_t> inputs(kLength), targets(kLength), ids(packing == Packing::kPack ? kLength : 0);
      ASSERT_TRUE((*samples)
                      ->Read(i, {.inputs = absl::MakeSpan(inputs),
                                 .targets = absl::MakeSpan(targets),
                                 .position_ids = absl::MakeSpan(ids)})
                      .ok());
      std::erase(targets, kMaskedTarget);
      counted += Tokenizer::Load(kGpt2)->Decode(targets, false) + "|";
    }
    EXPECT_EQ(counted, packing == Packing::kPack ? " c d| f w|" : " c d| f| w|");
  }
  const TokenSource prompt = prepared->tokens.Slice((*begins)[1], (*begins)[1] + 4);
  EXPECT_THAT(std::string(DocumentSamples::Create(prompt, Packing::kPad, {}, kLength).status().message()),
              ::testing::HasSubstr("no target of a document counts in the loss; set data.loss_on=ALL"));
}

TEST_F(PreparedTextTest, DamageIsFound) {
  const absl::StatusOr<PreparedText> made = Prepare();
  ASSERT_TRUE(made.ok()) << made.status();
  const std::string& place = made->report.folder;
  for (const char* name : {"tokens_00000.bin", ".counts", ".documents"}) {
    const std::string path = place + "/" + name, kept = folder_.path() + "/kept";
    std::filesystem::copy(path, kept);
    std::fstream(path, std::ios::in | std::ios::out | std::ios::binary).put('\x7F');
    EXPECT_EQ(Error(), absl::StrCat(place, " is damaged: ", name,
                                    " is not what was written; remove this folder, and the tokens are made again"));
    std::filesystem::remove(path);
    EXPECT_THAT(Error(), ::testing::StartsWith(place + " is damaged: cannot open "));
    std::filesystem::rename(kept, path);
    EXPECT_TRUE(Prepare().ok());
  }
  Write(place + "/.manifest.json", "{}");
  EXPECT_THAT(Error(), ::testing::StartsWith(place + " is damaged: .manifest.json is not a manifest"));
}

TEST_F(PreparedTextTest, NothingIsLeftOfTextThatIsRefused) {
  Write(text_.path, "{\"text\": \"a\"}\nno\n");
  EXPECT_EQ(Error(), text_.path + ":2: it is not JSON at its byte 2");
  EXPECT_THAT(Kept(), ::testing::IsEmpty());
  text_.bad_lines = BadLines::kSkip;
  const absl::StatusOr<PreparedText> prepared = Prepare();
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  EXPECT_EQ(prepared->report.totals.skipped, 1);
  EXPECT_EQ(Prepare()->report.totals.first_skipped, text_.path + ":2: it is not JSON at its byte 2");
}

TEST_F(PreparedTextTest, NothingIsLeftOfTextThatChangesMeanwhile) {
  const auto change = [&](int64_t, int64_t) { std::ofstream(text_.path, std::ios::app) << "{\"text\": \"f\"}\n"; };
  const absl::Status status = PrepareText(text_, {.cache = cache_, .progress = {.reading = change}}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), ::testing::StartsWith(text_.path));
  EXPECT_THAT(Kept(), ::testing::IsEmpty());
  EXPECT_EQ(Read(Prepare()->tokens), "a b c def");
}

TEST_F(PreparedTextTest, NothingIsLeftWhenTheDiskIsFull) {
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit now = {.rlim_cur = 500, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &now), 0);
  const absl::Status status = Prepare().status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("cannot write ")) << status;
  EXPECT_THAT(Kept(), ::testing::IsEmpty());
  EXPECT_TRUE(Prepare().ok());
}

// Regression: with a file, or a link to one, in the place of the cache, a run waited forever for another process.
TEST_F(PreparedTextTest, NobodyWaitsWhereThereCanBeNoCache) {
  Write(folder_.path() + "/file", "x");
  std::filesystem::create_symlink("file", cache_);
  EXPECT_THAT(Error(), ::testing::HasSubstr("Not a directory"));
  std::filesystem::remove(cache_);
  ASSERT_TRUE(Prepare().ok());
  const std::string key = Kept().at(0);
  std::filesystem::remove_all(cache_ + "/" + key);
  const std::string lock = absl::StrCat(cache_, "/.", key, ".lock");
  std::filesystem::create_directories(lock);
  std::filesystem::create_symlink(folder_.path() + "/elsewhere", lock + "/.lock");
  EXPECT_THAT(Error(), ::testing::HasSubstr("/.lock is a link"));
  EXPECT_FALSE(std::filesystem::exists(folder_.path() + "/elsewhere"));
}

TEST_F(PreparedTextTest, ThoseWhoWantTheSameTokensWaitForEachOther) {
  std::vector<absl::StatusOr<PreparedText>> prepared(4, absl::UnknownError("not run"));
  std::vector<std::thread> threads;
  for (auto& one : prepared) threads.emplace_back([&] { one = Prepare(); });
  for (std::thread& thread : threads) thread.join();
  int made = 0;
  for (const auto& one : prepared) {
    ASSERT_TRUE(one.ok()) << one.status();
    made += one->report.made ? 1 : 0;
    EXPECT_EQ(Read(one->tokens), "a b c de");
  }
  EXPECT_EQ(made, 1);
  EXPECT_EQ(Kept().size(), 1);
}

// Otherwise each process of a job would read all text up to its bad line, one after another.
TEST_F(PreparedTextTest, ThoseWhoWaitedHearTheErrorOfWhoTried) {
  Write(text_.path, "{\"text\": \"a\"}\nno\n");
  const std::string error = Error();
  const std::filesystem::path left = *std::filesystem::directory_iterator(cache_);
  ASSERT_EQ(left.extension(), ".error");
  std::string heard;
  std::thread waits;
  {
    const absl::StatusOr<FolderLock> lock = FolderLock::Take(std::filesystem::path(left).replace_extension("lock"), "");
    ASSERT_TRUE(lock.ok()) << lock.status();
    waits = std::thread([&] { heard = Error(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(300));  // It would hear the same if it came too late.
    Write(left, "3\nof another process");
  }
  waits.join();
  EXPECT_THAT(heard, ::testing::AnyOf("of another process", error));
  EXPECT_EQ(Error(), error);  // Who did not wait tries again.
  Write(text_.path, "{\"text\": \"a\"}\n");
  EXPECT_TRUE(Prepare().ok());
}

}  // namespace
}  // namespace shale
