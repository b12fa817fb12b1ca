#include <zlib.h>
#include <zstd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/data/content.h"
#include "engine/data/data_files.h"
#include "engine/data/split_names.h"
#include "engine/data/token_source.h"
#include "engine/io/file.h"
#include "engine/tokenize/bpe_trainer.h"
#include "engine/tokenize/document_reader.h"
#include "engine/tokenize/scanner.h"
#include "engine/tokenize/text_row.h"
#include "engine/tokenize/token_files.h"
#include "engine/tokenize/tokenize_documents.h"
#include "engine/tokenize/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/io/temp_folder.h"

namespace shale {
namespace {

void WriteDocument(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

Tokenizer Load(const std::string& family) {
  absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Load("tests/engine/tokenize/golden/" + family);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// Returns the tokens of all documents at `path`, or the error.
absl::StatusOr<std::vector<int32_t>> Tokens(const Tokenizer& tokenizer, const std::string& path,
                                            const DocumentReader::Options& options, const TokenizeOptions& how) {
  absl::StatusOr<DocumentReader> reader = DocumentReader::Open(path, options);
  if (!reader.ok()) return reader.status();
  std::vector<int32_t> all;
  const absl::StatusOr<TokenizeTotals> totals =
      TokenizeDocuments(tokenizer, *reader, how, [&](const DocumentTokens& document) {
        all.insert(all.end(), document.tokens.begin(), document.tokens.end());
        return absl::OkStatus();
      });
  if (!totals.ok()) return totals.status();
  EXPECT_EQ(totals->tokens, static_cast<int64_t>(all.size()));
  return all;
}

std::string ErrorOfDocuments(const std::string& path, const DocumentReader::Options& options = {}) {
  return std::string(Tokens(Load("gpt2"), path, options, {}).status().message());
}

std::string LongText() {
  std::string text;
  for (int i = 0; i < 3000; ++i)
    text += absl::StrCat("Line ", i * 37, "  of\n", i % 3 == 0 ? "\n" : "", "文字é😀. it's\n");
  return text;
}

TEST(DocumentsTest, PiecesAndThreadsDoNotChangeTheTokens) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.txt";
  WriteDocument(path, LongText());
  for (const char* family : {"gpt2", "qwen2", "llama3", "llama2"}) {
    const Tokenizer tokenizer = Load(family);
    std::vector<int32_t> whole;
    ASSERT_TRUE(Encoder(tokenizer).Encode(LongText(), {.add_prefix_and_suffix = true}, &whole).ok());
    for (const int64_t bytes : {100, 5000, 1 << 20}) {
      for (const int threads : {1, 3}) {
        const DocumentReader::Options options = {.cut_lines = tokenizer.by_line(), .piece_bytes = bytes};
        const auto tokens = Tokens(tokenizer, path, options, {.threads = threads});
        ASSERT_TRUE(tokens.ok()) << tokens.status();
        EXPECT_EQ(*tokens, whole) << family << " " << bytes << " " << threads;
      }
    }
  }
}

TEST(DocumentsTest, DocumentsAreFilesAndLinesOfJson) {
  TempFolder folder;
  WriteDocument(folder.path() + "/b.jsonl", "{\"text\": \"x<|endoftext|>\", \"n\": 1}\n\n{\"text\": \"y\"}");
  WriteDocument(folder.path() + "/a.txt", "z\n");
  WriteDocument(folder.path() + "/.hidden", "no");
  WriteDocument(folder.path() + "/empty", "");
  const Tokenizer tokenizer = Load("gpt2");
  const int32_t end = tokenizer.Find("<|endoftext|>");
  // A folder in which text and rows mix would be refused.
  WriteDocument(folder.path() + "/all.list", "a.txt\nb.jsonl\nempty\n");
  const auto tokens = Tokens(tokenizer, folder.path() + "/all.list", {}, {.end_of_document = end});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(tokenizer.Decode(*tokens, false), "z\n<|endoftext|>x<|endoftext|><|endoftext|>y<|endoftext|>");
  EXPECT_EQ(std::count(tokens->begin(), tokens->end(), end), 3) << "what looks like a special token is text";
}

TEST(DocumentsTest, BinaryAndKnownFilesOfAFolderAreSkipped) {
  TempFolder folder;
  WriteDocument(folder.path() + "/a.txt", "x");
  WriteDocument(folder.path() + "/a.dat", std::string("\0\1", 2));
  std::filesystem::create_symlink("a.txt", folder.path() + "/b.txt");
  std::filesystem::create_directory(folder.path() + "/inside");
  WriteDocument(folder.path() + "/inside/LICENSE", "x");
  WriteDocument(folder.path() + "/inside/more.list", "a.txt");
  const absl::StatusOr<DataFiles> files = ListDataFiles(folder.path(), {});
  ASSERT_TRUE(files.ok()) << files.status();
  ASSERT_EQ(files->files.size(), 1);
  EXPECT_EQ(files->files[0].path, folder.path() + "/a.txt");
  EXPECT_THAT(files->skipped,
              ::testing::ElementsAre("a.dat (binary)", "b.txt (the same as a.txt)",
                                     "inside/LICENSE (describes the data)", "inside/more.list (a list of files)"));
  std::filesystem::remove(folder.path() + "/a.txt");
  EXPECT_THAT(ErrorOfDocuments(folder.path()), ::testing::HasSubstr("/b.txt"));
  std::filesystem::remove(folder.path() + "/b.txt");
  EXPECT_EQ(ErrorOfDocuments(folder.path()),
            folder.path() +
                " has no data: skipped a.dat (binary), inside/LICENSE (describes the data), "
                "inside/more.list (a list of files)");
}

// Returns what zlib packs `text` into, as one member of a .gz file.
std::string Gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = text.size();
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = packed.size();
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string Zstd(const std::string& text) {
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  packed.resize(ZSTD_compress(packed.data(), packed.size(), text.data(), text.size(), 1));
  return packed;
}

TEST(DocumentsTest, PackedFilesAndListsAreRead) {
  TempFolder folder;
  const std::string text = LongText(), rest = "and\nthe rest";
  WriteDocument(folder.path() + "/whole.txt", text + rest);
  WriteDocument(folder.path() + "/a.txt.gz", Gzip(text) + Gzip(rest));
  WriteDocument(folder.path() + "/a.txt.zst", Zstd(text) + Zstd(rest));
  const Tokenizer tokenizer = Load("llama3");
  const DocumentReader::Options options = {.cut_lines = true, .piece_bytes = 5000};
  const auto whole = Tokens(tokenizer, folder.path() + "/whole.txt", options, {});
  ASSERT_TRUE(whole.ok()) << whole.status();
  std::vector<int32_t> twice = *whole;
  twice.insert(twice.end(), whole->begin(), whole->end());
  for (const char* name : {"/a.txt.gz", "/a.txt.zst"}) {
    const auto tokens = Tokens(tokenizer, folder.path() + name, options, {});
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(*tokens, *whole) << name;
  }
  WriteDocument(folder.path() + "/all.list", "a.txt.zst\n\nwhole.txt\r\n");
  const auto tokens = Tokens(tokenizer, folder.path() + "/all.list", options, {.threads = 2});
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  EXPECT_EQ(*tokens, twice);
  WriteDocument(folder.path() + "/all.list", "whole.txt\nmissing.txt\n");
  EXPECT_THAT(ErrorOfDocuments(folder.path() + "/all.list"),
              ::testing::StartsWith(folder.path() + "/all.list:2: cannot open "));
  // Regression: a name ended at a zero byte, so another file was read than the list says.
  WriteDocument(folder.path() + "/all.list", std::string("whole.txt\n\nwhole.txt\0.old\n", 25));
  EXPECT_EQ(ErrorOfDocuments(folder.path() + "/all.list"),
            folder.path() + "/all.list:3: the name \"whole.txt\\000.old\" has control characters; rename the file");
  // Regression: the lines of the other list were trained on as text.
  WriteDocument(folder.path() + "/other.list", "whole.txt\n");
  WriteDocument(folder.path() + "/all.list", "other.list\n");
  EXPECT_EQ(ErrorOfDocuments(folder.path() + "/all.list"),
            absl::StrCat(folder.path(), "/all.list:1: ", folder.path(),
                         "/other.list is a list of files itself; a list names files and folders; put its lines here"));
}

// Regression: zeros behind the data, which gzip and Python ignore, and windows over 128 MiB were called damage.
TEST(DocumentsTest, PackedFilesAreReadAsTheirProgramsReadThem) {
  TempFolder folder;
  const std::string path = folder.path() + "/a", text = "one\ntwo\n";
  const Tokenizer tokenizer = Load("gpt2");
  const auto read = [&](const std::string& packed) -> std::string {
    WriteDocument(path, packed);
    const auto tokens = Tokens(tokenizer, path, {}, {});
    return tokens.ok() ? tokenizer.Decode(*tokens, false) : std::string(tokens.status().message());
  };
  const std::string zeros(300000, '\0');
  EXPECT_EQ(read(Gzip(text) + zeros), text);
  EXPECT_EQ(read(Gzip(text) + zeros + Gzip(text)), text + text);
  EXPECT_THAT(read(Gzip(text) + zeros + "x"), ::testing::HasSubstr("bytes that are no gzip data follow its data, at "));
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_windowLog, 31);
  std::string packed(ZSTD_compressBound(text.size()), '\0');
  ZSTD_inBuffer in = {text.data(), text.size(), 0};
  ZSTD_outBuffer out = {packed.data(), packed.size(), 0};
  EXPECT_EQ(ZSTD_compressStream2(context, &out, &in, ZSTD_e_flush) == 0, true);  // The frame does not know its size.
  EXPECT_EQ(ZSTD_compressStream2(context, &out, &in, ZSTD_e_end), 0);
  ZSTD_freeCCtx(context);
  EXPECT_EQ(read(packed.substr(0, out.pos)), text);
}

// Returns the texts of the rows at `path`, or the error.
std::string RowsOf(const std::string& path, const DocumentReader::Options& options = {}) {
  absl::StatusOr<DocumentReader> reader = DocumentReader::Open(path, options);
  if (!reader.ok()) return std::string(reader.status().message());
  std::string texts;
  while (true) {
    std::vector<DocumentPiece> pieces;
    const absl::Status status = reader->Read(&pieces);
    for (const DocumentPiece& piece : pieces) {
      const absl::StatusOr<TextRow> row = ReadTextRow(piece, {.loss_on = LossOn::kAll});
      if (piece.is_row && !row.ok()) return std::string(row.status().message());
      absl::StrAppend(&texts, piece.is_row ? row->text : "prose: " + piece.text, "|");
    }
    if (!status.ok()) return std::string(status.message());
    if (pieces.empty()) return texts;
  }
}

// Regression: rows in files of other names were trained on as prose, with their braces and quotes. What
// datasets.load_dataset reads of each of these files (tools/parity/make_folder_goldens.py) is "x|y|", or an error.
TEST(DocumentsTest, RowsAreKnownByTheirContent) {
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
// training is in a golden (tools/parity/make_folder_goldens.py). Shale takes the same files or refuses the folder, but
// for files named as of the training split that datasets forgets: beside folders that name splits, beside shards in
// data/, or because other endings are more frequent.
TEST(DocumentsTest, FoldersAreReadAsDatasetsDoesOrRefused) {
  const absl::StatusOr<std::string> golden = ReadFile("tests/engine/tokenize/golden/data_folders.json", 1 << 20);
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

// Regression: one byte that is not UTF-8 ended a run, with no way to go on. The right texts are Python's.
TEST(DocumentsTest, BytesThatAreNotUtf8AreReplacedIfAsked) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.txt", r = "\uFFFD";
  for (const auto& [bytes, wanted] : {std::pair<std::string, std::string>{"a\xE9 b", "a" + r + " b"},
                                      {"\xF0\x9F\x98z\xF0\x9F\x98\x80", r + "z😀"},
                                      {"\xE2\x82", r},
                                      {"\xC0\x80\xED\xA0\x80", r + r + r + r + r},
                                      {"\xF4\x90\x80\x80é", r + r + r + r + "é"}}) {
    for (const int64_t size : {1, 2, 3, 100}) {
      WriteDocument(path, bytes);
      absl::StatusOr<DocumentReader> reader =
          DocumentReader::Open(path, {.bad_bytes = BadBytes::kReplace, .piece_bytes = size});
      ASSERT_TRUE(reader.ok()) << reader.status();
      std::vector<DocumentPiece> pieces;
      ASSERT_TRUE(reader->Read(&pieces).ok());
      ASSERT_EQ(pieces.size(), 1);
      EXPECT_EQ(pieces[0].text, wanted) << size;
      EXPECT_GE(reader->replaced(), 1);
      EXPECT_THAT(reader->first_replaced(), ::testing::StartsWith(path + ": the byte at offset "));
    }
  }
  WriteDocument(folder.path() + "/a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\xE9\"}\n");
  EXPECT_EQ(RowsOf(folder.path() + "/a.jsonl", {.bad_bytes = BadBytes::kReplace}), "a|" + r + "|");
  EXPECT_EQ(RowsOf(folder.path() + "/a.jsonl"), folder.path() + "/a.jsonl:2: it is not UTF-8");
}

TEST(DocumentsTest, DamagedPackedFilesAreRefused) {
  TempFolder folder;
  const std::string text = LongText();
  for (const auto& [ending, packed] : {std::pair(".gz", Gzip(text)), std::pair(".zst", Zstd(text))}) {
    const std::string path = folder.path() + "/a.txt" + ending;
    for (const size_t size : {size_t{3}, packed.size() / 2, packed.size() - 1}) {
      WriteDocument(path, packed.substr(0, size));
      EXPECT_EQ(ErrorOfDocuments(path), path + " is damaged or was cut short: it ends inside of its compressed data");
    }
    WriteDocument(path, text);
    EXPECT_THAT(ErrorOfDocuments(path), ::testing::StartsWith(path + " is damaged or was cut short: "));
  }
}

TEST(DocumentsTest, CompletionsCountAndPromptsDoNot) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.jsonl";
  WriteDocument(path,
                "{\"prompt\": \"the question\", \"completion\": \" an answer\"}\n{\"text\": \"all\"}\n{\"prompt\": 1}\n"
                "{\"prompt\": \"\", \"completion\": \"x\"}\nno row\n");
  const Tokenizer tokenizer = Load("llama3");
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
TEST(DocumentsTest, MembersOfRowsAreReadNamedOrRefused) {
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
TEST(DocumentsTest, WhatRowsSpellDropAndIgnoreIsCounted) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.jsonl";
  WriteDocument(
      path,
      "{\"text\": \"a<|endoftext|>\", \"id\": 1}\n"
      "{\"messages\": [{\"role\": \"assistant\", \"content\": \"b\"}, {\"role\": \"tool\", \"content\": \"c\"}]}\n"
      "{\"messages\": [{\"role\": \"assistant\", \"content\": \"<|endoftext|>\"}], \"source\": \"x\"}\n");
  const Tokenizer tokenizer = Load("gpt2");
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

TEST(DocumentsTest, ThreadsCountTheSameWords) {
  TempFolder folder;
  const std::string path = folder.path() + "/a.txt";
  WriteDocument(path, LongText());
  WordCounts whole;
  CountWords(LongText(), kLlama3Pattern, &whole);
  for (const int threads : {1, 3}) {
    absl::StatusOr<DocumentReader> reader = DocumentReader::Open(path, {.cut_lines = true, .piece_bytes = 3000});
    ASSERT_TRUE(reader.ok()) << reader.status();
    WordCounts words;
    const auto totals = CountWordsOfDocuments(*reader, kLlama3Pattern, {.threads = threads}, &words);
    ASSERT_TRUE(totals.ok()) << totals.status();
    EXPECT_EQ(totals->bytes, std::ssize(LongText()));
    EXPECT_EQ(words, whole);
  }
}

TEST(DocumentsTest, ErrorsNameFileAndLine) {
  TempFolder folder;
  const std::string json = folder.path() + "/a.jsonl", text = folder.path() + "/a.txt";
  WriteDocument(json, "{\"text\": \"x\"}\n\n{\"test\": 1}\n");
  EXPECT_EQ(ErrorOfDocuments(json),
            json + ":3: it has neither \"text\" nor \"messages\" nor \"prompt\" and \"completion\"");
  WriteDocument(json, "{\"text\": 1}\n");
  EXPECT_EQ(ErrorOfDocuments(json), json + ":1: \"text\": found 1; wanted a string");
  WriteDocument(json, "{\"text\": \"x\"}\n{");
  EXPECT_EQ(ErrorOfDocuments(json), json + ":2: it is not JSON at its byte 2");
  WriteDocument(text, "a\nb\nc\xE9 d\n");
  const std::string not_utf8 = text + " is not UTF-8: byte 0x";
  EXPECT_THAT(ErrorOfDocuments(text), ::testing::StartsWith(not_utf8 + "E9 at offset 5 (line 3) does not begin"));
  EXPECT_THAT(ErrorOfDocuments(text, {.piece_bytes = 2}), ::testing::StartsWith(not_utf8 + "E9 at offset 5 (line 3)"));
  WriteDocument(text, "a\nb\xF0\x9F\x98");
  EXPECT_THAT(ErrorOfDocuments(text), ::testing::StartsWith(not_utf8 + "F0 at offset 3 (line 2)"))
      << "half a character at the end";
  WriteDocument(json, "{\"text\": \"\\ud83d\"}\n");
  EXPECT_EQ(ErrorOfDocuments(json), json +
                                        ":1: the string at its byte 17 has half of a pair of surrogates (\\ud800 to "
                                        "\\udfff), which is no character");
  WriteDocument(json, "{\"text\": \"x\", \"n\": 1e400}\n");
  EXPECT_EQ(ErrorOfDocuments(json), json + ":1: the number 1e400 is too large");
  WriteDocument(text, std::string(100, 'a'));
  EXPECT_EQ(ErrorOfDocuments(text, {.piece_bytes = 10, .largest_piece_bytes = 50}),
            text + ":1: a document that this tokenizer cannot take in pieces has more than 50 B");
  WriteDocument(json, "{\"text\": \"x\"}\n{\"text\": \"" + std::string(100, 'a') + "\"}\n");
  EXPECT_EQ(ErrorOfDocuments(json, {.piece_bytes = 10, .largest_piece_bytes = 50}),
            json + ":2: a line has more than 50 B");
  WriteDocument(text, absl::StrCat("PAR1", LongText(), "PAR1"));
  EXPECT_THAT(ErrorOfDocuments(text),
              ::testing::StartsWith(text + " is a Parquet file, which is not read; convert it to JSON"));
  WriteDocument(text, "");
  EXPECT_EQ(ErrorOfDocuments(text), text + " has no data");
}

// A word takes 24 times its size, so a file without a space could otherwise take all memory of a machine.
TEST(DocumentsTest, WordsThatAreTooLongAreRefused) {
  std::vector<int32_t> tokens;
  const EncodeOptions options = {.largest_piece_bytes = 100};
  for (const char* family : {"gpt2", "llama2", "falcon"}) {
    Encoder encoder(Load(family));
    const std::string spaces = std::string(family) == "llama2" ? "" : " ";  // This family does not split at spaces.
    EXPECT_TRUE(encoder.Encode(std::string(90, 'a') + spaces + std::string(90, 'b'), {}, &tokens).ok());
    if (!spaces.empty()) {
      EXPECT_TRUE(encoder.Encode(std::string(90, 'a') + spaces + std::string(90, 'b'), options, &tokens).ok())
          << family;
    }
    const absl::Status status = encoder.Encode(std::string(101, 'a'), options, &tokens);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << family;
    EXPECT_THAT(std::string(status.message()),
                ::testing::HasSubstr(" bytes in a row that the tokenizer does not split; at most 100 are supported"));
  }
}

TEST(TokenFilesTest, TheEngineReadsThem) {
  for (const int64_t vocabulary : {700, 70000}) {
    TempFolder folder;
    const std::string path = folder.path() + "/tokens";
    absl::StatusOr<TokenFilesWriter> writer = TokenFilesWriter::Create(path, vocabulary, /*tokens_in_file=*/4);
    ASSERT_TRUE(writer.ok()) << writer.status();
    const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 699, static_cast<int32_t>(vocabulary - 1), 0, 7, 8, 9};
    ASSERT_TRUE(writer->Add(absl::MakeSpan(tokens).subspan(0, 3)).ok());
    ASSERT_TRUE(writer->Add(absl::MakeSpan(tokens).subspan(3)).ok());
    ASSERT_TRUE(writer->Commit().ok());
    const absl::StatusOr<TokenSource> source = TokenSource::Open(path);
    ASSERT_TRUE(source.ok()) << source.status();
    std::vector<int32_t> read(source->size());
    ASSERT_TRUE(source->Read(0, source->size(), read.data()).ok());
    EXPECT_EQ(read, tokens);
  }
}

TEST(TokenFilesTest, NothingAppearsWithoutTokens) {
  TempFolder folder;
  absl::StatusOr<TokenFilesWriter> writer = TokenFilesWriter::Create(folder.path() + "/tokens", 700);
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_EQ(writer->Commit().message(), "the data have no tokens");
  EXPECT_FALSE(TokenSource::Open(folder.path() + "/tokens").ok());
}

}  // namespace
}  // namespace shale
