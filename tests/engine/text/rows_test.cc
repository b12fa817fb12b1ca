
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/files/data/content.h"
#include "engine/files/data/data_files.h"
#include "engine/files/io/file.h"
#include "engine/text/documents/document_reader.h"
#include "engine/text/documents/text_row.h"
#include "engine/text/documents/tokenize_documents.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/files/io/temp_folder.h"
#include "tests/engine/text/documents.h"

namespace shale {
namespace {

// Regression: rows in files of other names were trained on as prose, with their braces and quotes. What
// datasets.load_dataset reads of each of these files (tests/parity/make_folder_goldens.py) is "x|y|", or an error.
TEST(RowsTest, RowsAreKnownByTheirContent) {
  TempFolder folder;
  const std::string x = "{\"text\": \"x\"}", y = "{\"text\": \"y\"}";
  const std::string tall = "{\n \"text\":\n\t\"x\"\n}\n{\"text\"\n: \"y\"}";
  for (const std::string& rows :
       {x + "\n" + y + "\n", x + "\n\n\r\n" + y, "\xEF\xBB\xBF" + x + "\n" + y, "[" + x + "," + y + "]",
        "\xEF\xBB\xBF [\n " + x + "\n , " + y + "\n]\n", tall, "  " + x + y}) {
    for (const char* name : {"r.json", "r.ndjson", "r.JSONL", "r.txt", "r", "r.jsonl"}) {
      const bool lines = IsNamedJsonLines(name) && rows[0] != '[' && rows.find('[') == std::string::npos;
      if (lines && (rows == tall || rows == "  " + x + y)) continue;  // They are no lines.
      const std::string path = folder.path() + "/" + name;
      WriteDocument(path, rows);
      EXPECT_EQ(RowsOf(path), "x|y|") << name << ": " << rows;
      for (const int64_t bytes : {1, 2, 7}) EXPECT_EQ(RowsOf(path, {.piece_bytes = bytes}), "x|y|") << name << rows;
      WriteDocument(path + ".gz", Gzip(rows));
      EXPECT_EQ(RowsOf(path + ".gz"), "x|y|") << name;
      std::filesystem::remove(path);
      std::filesystem::remove(path + ".gz");
    }
  }
  const std::string path = folder.path() + "/r.json";
  const auto refused = [&](const std::string& rows, const std::string& wanted) {
    WriteDocument(path, rows);
    EXPECT_THAT(RowsOf(path), ::testing::StartsWith(path + wanted)) << rows;
    EXPECT_THAT(RowsOf(path, {.piece_bytes = 1}), ::testing::StartsWith(path + wanted)) << rows;
  };
  refused("[" + x + ",\n]", ":2: a row must follow a comma");
  refused("[" + x + "] prose", ":1: more follows the list of rows");
  refused("[" + x + "\n" + y + "]", ":2: a comma or the end of the list must follow a row");
  refused("[" + x + ",\n" + y, ":2: the file ends inside of its list of rows");
  refused(x + "\n{\"text\": \"}", ":2: the file ends inside of the row that begins here");
  refused(x + "\nprose", ":2: it is not");
  refused("[" + x + ",\n\"y\"]", ":2: row 2: it is not");
  refused("[[" + x + "]]", ":1: row 1: it is not");
  refused("{\"rows\": [" + x + "]}", ":1: it has neither \"text\" nor ");
  for (const char* prose : {"{\\bf text}", "[1] A reference", "{% for %}", "{ text }", "{{ x }}"}) {
    WriteDocument(folder.path() + "/p.txt", prose);
    EXPECT_EQ(RowsOf(folder.path() + "/p.txt"), absl::StrCat("prose: ", prose, "|"));
  }
  WriteDocument(path, x);
  EXPECT_EQ(RowsOf(path, {.files = {.format = DataFormat::kText}}), "prose: " + x + "|");
  WriteDocument(folder.path() + "/guess", "{\"a\": 1}");
  EXPECT_THAT(ErrorOfDocuments(folder.path() + "/guess"), ::testing::HasSubstr("set data.format=TEXT if it is text"));
  const std::string zero(1, '\0');
  WriteDocument(folder.path() + "/guess", "{\"text\": \"" + zero + "\"}");
  EXPECT_THAT(ErrorOfDocuments(folder.path() + "/guess"), ::testing::HasSubstr("guess:1: it is not JSON"));
  // What followed a zero byte in a line was dropped.
  WriteDocument(folder.path() + "/r.jsonl", x + zero + y);
  EXPECT_THAT(ErrorOfDocuments(folder.path() + "/r.jsonl"),
              ::testing::HasSubstr("r.jsonl:1: it is not JSON at its byte 14"));
}

// Folders as they lie on the hub, with splits in the names of files and folders. What datasets.load_dataset takes for
// training is in a golden (tests/parity/make_folder_goldens.py). Shale takes the same files or refuses the folder, but
// for files named as of the training split that datasets forgets: beside folders that name splits, beside shards in
// data/, or because other endings are more frequent.
TEST(RowsTest, FoldersAreReadAsDatasetsDoesOrRefused) {
  const absl::StatusOr<std::string> golden = ReadFile("tests/engine/text/golden/data_folders.json", 1 << 20);
  ASSERT_TRUE(golden.ok()) << golden.status();
  const nlohmann::json cases = nlohmann::json::parse(*golden);
  int same = 0, refused = 0, different = 0;
  for (const auto& one : cases) {
    TempFolder folder;
    for (const std::string name : one["files"]) {
      std::string bytes = absl::StrCat("{\"text\": \"", name, "\"}");
      if (absl::EndsWith(name, ".txt")) bytes = name;
      if (absl::EndsWith(name, ".json")) bytes = absl::StrCat("[", bytes, "]");
      if (absl::EndsWith(name, ".gz")) bytes = Gzip(bytes);
      const std::string path = absl::StrCat(folder.path(), "/", name);
      std::filesystem::create_directories(std::filesystem::path(path).parent_path());
      WriteDocument(path, bytes);
    }
    const absl::StatusOr<DataFiles> found = ListDataFiles(folder.path(), {});
    if (!found.ok()) {
      ++refused;
      continue;
    }
    std::vector<std::string> taken;
    for (const DataFile& file : found->files) {
      taken.push_back(file.path.substr(folder.path().size() + 1));
      EXPECT_EQ(file.rows, !absl::EndsWith(taken.back(), ".txt"));
      const SplitName split = SplitNameOf(taken.back());
      EXPECT_TRUE(split == SplitName::kNone || split == SplitName::kTrain) << taken.back();
    }
    if (one["train"] == nlohmann::json(taken)) {
      ++same;
      continue;
    }
    ++different;
    std::vector<std::string> theirs;
    if (!one["train"].is_null()) theirs = one["train"].get<std::vector<std::string>>();
    EXPECT_TRUE(std::includes(taken.begin(), taken.end(), theirs.begin(), theirs.end())) << one;
    for (const std::string& name : taken) {
      const bool is_theirs = std::binary_search(theirs.begin(), theirs.end(), name);
      EXPECT_TRUE(is_theirs || SplitNameOf(name) == SplitName::kTrain) << one << ": " << name;
    }
  }
  EXPECT_EQ(absl::StrCat(same, " ", refused, " ", different), "77 89 34");
}

TEST(RowsTest, CompletionsCountAndPromptsDoNot) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.jsonl";
  WriteDocument(path,
                "{\"prompt\": \"the question\", \"completion\": \" an answer\"}\n{\"text\": \"all\"}\n{\"prompt\": 1}\n"
                "{\"prompt\": \"\", \"completion\": \"x\"}\nno row\n");
  const Tokenizer tokenizer = LoadTokenizer("llama3");
  const int32_t end = tokenizer.Find("<|endoftext|>");
  for (const LossOn loss_on : {LossOn::kCompletions, LossOn::kAll}) {
    absl::StatusOr<DocumentReader> reader = DocumentReader::Open(path, {});
    ASSERT_TRUE(reader.ok()) << reader.status();
    std::vector<std::string> counted, left;
    const absl::StatusOr<TokenizeTotals> totals = TokenizeDocuments(
        tokenizer, *reader, {.end_of_document = end, .loss_on = loss_on, .bad_lines = BadLines::kSkip},
        [&](const DocumentTokens& document) {
          std::vector<int32_t> some, others;
          for (size_t i = 0; i < document.tokens.size(); ++i) {
            const bool counts = document.counts.empty() || document.counts[i] == 1;
            (counts ? some : others).push_back(document.tokens[i]);
          }
          counted.push_back(tokenizer.Decode(some, false));
          left.push_back(tokenizer.Decode(others, false));
          return absl::OkStatus();
        });
    ASSERT_TRUE(totals.ok()) << totals.status();
    EXPECT_EQ(totals->documents, 3);
    EXPECT_EQ(totals->skipped, 2);
    EXPECT_EQ(totals->first_skipped,
              path + ":3: it has neither \"text\" nor \"messages\" nor \"prompt\" and \"completion\"");
    const std::string begin = "<|begin_of_text|>", close = "<|endoftext|>";
    if (loss_on == LossOn::kAll) {
      EXPECT_EQ(totals->counted, totals->tokens);
      EXPECT_THAT(left, ::testing::ElementsAre("", "", ""));
      continue;
    }
    EXPECT_THAT(counted, ::testing::ElementsAre(" an answer" + close, begin + "all" + close, begin + "x" + close));
    EXPECT_THAT(left, ::testing::ElementsAre(begin + "the question", "", ""));
    EXPECT_LT(totals->counted, totals->tokens);
  }
}

// Members change what a row means. Before, all but the form's own were ignored without a word.
TEST(RowsTest, MembersOfRowsAreReadNamedOrRefused) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.jsonl";
  const auto error = [&](const std::string& row) {
    WriteDocument(path, row + "\n");
    const std::string message = ErrorOfDocuments(path);
    return message.substr(message.find(": ") == std::string::npos ? 0 : message.find(": ") + 2);
  };
  EXPECT_EQ(
      error(R"({"text": "a", "prompt": "b"})"),
      "it has \"text\" and \"prompt\", and only one of \"text\", \"messages\" and \"prompt\" with \"completion\" can "
      "be meant");
  EXPECT_EQ(error(R"({"messages": [], "completion": "b"})").substr(0, 35), "it has \"messages\" and \"completion\",");
  EXPECT_EQ(error(R"({"text": "a", "images": ["x.png"]})"),
            "\"images\" would change what the row means, and is not supported: found [\"x.png\"]");
  EXPECT_EQ(error(R"({"text": "a", "tools": [{}]})"),
            "\"tools\" would change what the row means, and only rows of messages have it: found [{}]");
  EXPECT_EQ(error(R"({"text": "a", "weight": 0.5})"),
            "\"weight\" would change what the row means, and is not supported: found 0.5");
  EXPECT_EQ(error(R"({"messages": [{"role": "user", "content": "a"}], "tools": "[]"})"),
            "\"tools\": found \"[]\"; wanted a list of objects, not their JSON in a string");
  EXPECT_EQ(
      error(R"({"messages": [{"role": "user", "content": [{"type": "image"}]}]})"),
      "message 0: \"content\": found the part {\"type\":\"image\"}; wanted {\"type\": \"text\", \"text\": \"...\"}: "
      "models here read text alone");
  EXPECT_EQ(error(R"({"messages": [{"role": "user", "content": "a", "weight": 1}]})"),
            "message 0: it is to count, and its role is \"user\"; only answers, of the role \"assistant\", count");
  EXPECT_EQ(error(R"({"messages": [{"role": "assistant", "content": "a", "train": "no"}]})"),
            "message 0: \"train\": found \"no\"; wanted true or false, or 1 or 0");
  EXPECT_EQ(error(R"({"messages": [{"role": "assistant", "content": "a", "train": false}]})"),
            "\"messages\": no answer counts, by their \"train\" or \"weight\"");
  EXPECT_EQ(error(R"({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"tokenize": true}})"),
            "\"chat_template_kwargs\": \"tokenize\" is an argument of apply_chat_template, and no variable");
  EXPECT_EQ(error(R"({"text": "a", "messages": null, "images": [], "id": 18446744073709551616})"), "");
}

// Before, special tokens that stand in rows became text or tokens without a word.
TEST(RowsTest, WhatRowsSpellDropAndIgnoreIsCounted) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.jsonl";
  WriteDocument(
      path,
      "{\"text\": \"a<|endoftext|>\", \"id\": 1}\n"
      "{\"messages\": [{\"role\": \"assistant\", \"content\": \"b\"}, {\"role\": \"tool\", \"content\": \"c\"}]}\n"
      "{\"messages\": [{\"role\": \"assistant\", \"content\": \"<|endoftext|>\"}], \"source\": \"x\"}\n");
  const Tokenizer tokenizer = LoadTokenizer("gpt2");
  const int32_t end = tokenizer.Find("<|endoftext|>");
  const absl::StatusOr<ChatTemplate> chat =
      ChatTemplate::Parse("{% for m in messages if m.role != 'tool' %}{{ m.content }}{{ eos_token }}{% endfor %}",
                          {{"eos_token", "<|endoftext|>"}});
  ASSERT_TRUE(chat.ok()) << chat.status();
  TokenizeOptions options = {.bad_lines = BadLines::kSkip, .chat = &*chat};
  int64_t ends = 0;
  const auto read = [&] {
    absl::StatusOr<DocumentReader> reader = DocumentReader::Open(path, {});
    EXPECT_TRUE(reader.ok()) << reader.status();
    ends = 0;
    const auto add = [&](const DocumentTokens& document) {
      ends += std::count(document.tokens.begin(), document.tokens.end(), end);
      return absl::OkStatus();
    };
    const absl::StatusOr<TokenizeTotals> totals = TokenizeDocuments(tokenizer, *reader, options, add);
    EXPECT_TRUE(totals.ok()) << totals.status();
    return *totals;
  };
  TokenizeTotals totals = read();
  EXPECT_EQ(totals.skipped, 1);
  EXPECT_EQ(totals.first_skipped, path +
                                      ":2: message 1: \"content\": the template leaves it out: \"c\"; "
                                      "data.allow_dropped_text=true trains without what templates leave out");
  EXPECT_EQ(totals.spelled, 2);
  EXPECT_EQ(totals.first_spelled, path + ":1: \"<|endoftext|>\"");
  EXPECT_THAT(totals.ignored, ::testing::ElementsAre("id", "source"));
  EXPECT_EQ(ends, 2) << "one in the message, and one that the template writes";
  options.allow_dropped_text = true;
  options.spelled_tokens = SpelledTokens::kInAllRows;
  totals = read();
  EXPECT_EQ(totals.skipped, 0);
  EXPECT_EQ(totals.dropped, 1);
  EXPECT_EQ(totals.first_dropped, path + ":2: message 1: \"content\": the template leaves it out: \"c\"");
  EXPECT_EQ(ends, 4);
  options.spelled_tokens = SpelledTokens::kRefuse;
  totals = read();
  EXPECT_EQ(totals.skipped, 2);
  EXPECT_EQ(totals.first_skipped, path + ":1: its text spells the special token \"<|endoftext|>\"");
}

}  // namespace
}  // namespace shale
